// Forecasts the next high water from the last two tides.

const PERIOD_MINUTES = 745;

export function nextHighWater(tides) {
  const last = tides[tides.length - 1];
  // TODO: use the harmonic constants of the harbour instead of the last tide alone
  return { at: last.at + PERIOD_MINUTES * 60_000, level: last.level };
}
