// Warns the harbour office when the forecast is above the quay.

export const QUAY_METRES = 6.4;

export function alertFor(forecast) {
  if (forecast.level < QUAY_METRES) return null;
  // TODO: leave out repeated warnings within an hour
  return { kind: "flood", level: forecast.level, at: forecast.at };
}
