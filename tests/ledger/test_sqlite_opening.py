"""Opening: what is made, what is migrated, and what is refused with which words."""

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from retinue.errors import ConfigurationError, LedgerUnavailable
from retinue.ledger import MemoryLedger, open_ledger
from retinue.ledger.sqlite import SqliteLedger
from retinue.ledger.sqlite.filesystem import filesystem_type
from retinue.ledger.sqlite.schema import APPLICATION_ID, MIGRATIONS
from retinue.testing.conformance.sample import create, key_of

pytestmark = pytest.mark.anyio


async def refusal(ledger: SqliteLedger) -> LedgerUnavailable:
    with pytest.raises(LedgerUnavailable) as error:
        await ledger.open()
    assert error.value.remedy
    with pytest.raises(LedgerUnavailable):
        await ledger.commit([create(key_of())])
    await ledger.close()
    return error.value


async def test_what_is_made_is_for_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    ledger = SqliteLedger(path)
    await ledger.open()
    await ledger.close()
    modes = [stat.S_IMODE(os.stat(place).st_mode) for place in (path, f"{path}.owners")]
    assert modes == [0o600, 0o700]


async def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    database.close()
    error = await refusal(SqliteLedger(path))
    assert error.code == "newer_version"
    assert "upgrade" in str(error).lower()


async def test_the_version_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    ledger = SqliteLedger(path)
    await ledger.open()
    assert await ledger.pragma("user_version") == len(MIGRATIONS)
    assert await ledger.pragma("application_id") == APPLICATION_ID
    await ledger.close()


async def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("CREATE TABLE recipes(name)")
    error = await refusal(SqliteLedger(path))
    assert error.code == "not_a_ledger"
    assert [name for (name,) in database.execute("SELECT name FROM sqlite_master")] == ["recipes"]
    database.close()


@pytest.mark.case("B152")
async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path, text = tmp_path / "notes.db", "# notes\n" * 100
    path.write_text(text)
    assert (await refusal(SqliteLedger(path))).code == "not_a_ledger"
    assert path.read_text() == text


@pytest.mark.parametrize("folder", ["missing/deep", "file"])
async def test_a_folder_that_is_not_there_is_refused_and_not_made(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    ledger = SqliteLedger(tmp_path / folder / "ledger.sqlite3")
    with pytest.raises(ConfigurationError, match=f"there is no folder `.*{folder}`") as error:
        await ledger.open()
    assert error.value.code == "invalid_ledger"
    assert os.listdir(tmp_path) == ["file"]
    await ledger.close()


async def test_a_path_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").mkdir()
    assert (await refusal(SqliteLedger(tmp_path / "ledger.db"))).code == "cannot_open"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    path.touch(mode=0o400)
    assert (await refusal(SqliteLedger(path))).code == "cannot_open"


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p"])
async def test_a_network_file_system_is_refused_before_anything_is_made(tmp_path: Path, kind: str) -> None:
    error = await refusal(SqliteLedger(tmp_path / "new" / "ledger.sqlite3", filesystem=lambda path: kind))
    assert error.code == "network_filesystem"
    assert kind in str(error)
    assert os.listdir(tmp_path) == []


def test_the_type_of_a_file_system_is_that_of_the_innermost_mount() -> None:
    lines = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw",
        "23 22 0:40 / /mnt/shared\\040disk rw shared:1 - nfs4 server:/x rw",
        "24 22 8:2 / /mnt rw - xfs /dev/sdb rw",
        "25 22 8:3 / /mnt/late rw - xfs /dev/sdc rw",
        "26 25 0:41 / /mnt/late rw - cifs //server/x rw",
        "not a line",
    )
    table = "\n".join(lines)
    paths = ("/home/x", "/mnt/shared disk/l.db", "/mnt/shared", "/mnt/late/l.db", "/mnt/later/l.db")
    assert [filesystem_type(path, table) for path in paths] == ["ext4", "nfs4", "xfs", "cifs", "xfs"]
    assert filesystem_type("/anywhere", "") == ""


async def test_the_real_file_system_is_accepted(tmp_path: Path) -> None:
    assert filesystem_type(str(tmp_path)) not in ("nfs", "cifs")


def test_forms_of_a_ledger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_ledger("memory"), MemoryLedger)
    forms = {
        "sqlite:///a/relative.db": tmp_path / "a" / "relative.db",
        "sqlite:////tmp/absolute": Path("/tmp/absolute"),
        "plain.sqlite3": tmp_path / "plain.sqlite3",
        "/tmp/plain.db": Path("/tmp/plain.db"),
    }
    for text, path in forms.items():
        ledger = open_ledger(text, durability="process")
        assert isinstance(ledger, SqliteLedger)
        assert (ledger.path, ledger.url, ledger.durability) == (path, f"sqlite:///{path}", "process")
        assert open_ledger(ledger.url).url == ledger.url
    assert open_ledger(tmp_path / "x.db").url == f"sqlite:///{tmp_path}/x.db"


@pytest.mark.parametrize(
    "text", ["", "ledger", "sqlite://", "sqlite:///", "sqlite:///folder/", "mysql://x", "postgresql://host/db"]
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        open_ledger(text)
    assert error.value.code == "invalid_ledger"
    assert "sqlite:///" in str(error.value)
    if text.startswith("postgresql"):
        assert "not in this version" in str(error.value)


def test_a_durability_that_is_unknown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        SqliteLedger(tmp_path / "x.db", durability="fast")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("what", ["removed", "replaced", "folder"])
async def test_a_file_that_goes_away_while_it_is_open_takes_no_commit(tmp_path: Path, what: str) -> None:
    path = tmp_path / "home" / "ledger.sqlite3"
    path.parent.mkdir(mode=0o700)
    ledger = SqliteLedger(path)
    await ledger.open()
    await ledger.commit([create(key_of(thread="one"))])
    if what == "folder":
        path.parent.rename(tmp_path / "away")
    else:
        path.unlink()
    if what == "replaced":
        path.touch()
    for _ in range(2):
        with pytest.raises(LedgerUnavailable) as gone:
            await ledger.commit([create(key_of(thread="two"))])
        assert gone.value.code == "file_gone"
        assert gone.value.remedy
    await ledger.close()
    assert path.exists() is (what == "replaced")  # nothing is made in its place
