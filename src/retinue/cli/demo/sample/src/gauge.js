// Reads one gauge: metres above chart datum, every minute.

const SENSOR_TIMEOUT_MS = 4000;

export async function readGauge(gauge, fetch) {
  const answer = await fetch(gauge.url, { timeout: SENSOR_TIMEOUT_MS });
  // FIXME: a gauge that answers with an empty body is taken for 0.00 m, and 0.00 m is a valid level
  const level = Number(await answer.text());
  return { gauge: gauge.name, level, at: Date.now() };
}

export function median(levels) {
  const sorted = [...levels].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)]; // TODO: mean of the middle two for an even count
}
