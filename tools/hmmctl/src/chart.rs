// SPDX-License-Identifier: GPL-2.0
//! Plots over time, in SVG.

use crate::picture::escape;
use std::fmt::Write;

/// Colours of the series.
const COLORS: [&str; 8] =
    ["#3f8f3a", "#2f6db5", "#c0392b", "#b8860b", "#8e44ad", "#16808a", "#7f5539", "#5d6d7e"];

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 10.0;

/// A line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// A value for each time; `None` where there is none.
    pub values: Vec<Option<f64>>,
}

/// A plot.
pub struct Chart<'a> {
    /// Times of the values, in seconds.
    pub times: &'a [f64],
    /// The series to draw.
    pub series: &'a [Series],
    /// Formats a value.
    pub format: fn(f64) -> String,
    /// Units of the value axis.
    pub units: Units,
    /// Whether the series are stacked, or each starts at zero.
    pub stacked: bool,
}

/// Units of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Units {
    /// Ticks are multiples of 1, 2 or 5 times a power of 10.
    Decimal,
    /// Ticks are multiples of a power of 2, as KiB and MiB are.
    Binary,
}

/// Maximum number of intervals between ticks of an axis.
const INTERVALS: f64 = 5.0;

/// Distance of the ticks of an axis that ends at `largest`.
fn tick(largest: f64, units: Units) -> f64 {
    let least = largest / INTERVALS;
    match units {
        Units::Binary => 2f64.powf(least.log2().ceil()),
        Units::Decimal => {
            let scale = 10f64.powf(least.log10().floor());
            let steps = [1.0, 2.0, 5.0, 10.0];
            // `least / scale` is below 10, but for rounding.
            steps.into_iter().find(|step| *step * scale >= least).unwrap_or(10.0) * scale
        }
    }
}

/// Ticks of an axis from zero to `largest`.
fn ticks(largest: f64, units: Units) -> Vec<f64> {
    let step = tick(largest, units);
    let last = (largest / step + 1e-9).floor() as u32;
    (0..=last).map(|index| step * f64::from(index)).collect()
}

/// Number of decimals for multiples of `step`.
fn decimals(step: f64) -> usize {
    (-step.log10().floor()).max(0.0) as usize
}

impl Chart<'_> {
    /// The upper lines of the series, lowest first, and their base lines.
    fn lines(&self) -> Vec<(Vec<Option<f64>>, Vec<f64>)> {
        let mut base = vec![0.0; self.times.len()];
        let mut lines = Vec::new();
        for series in self.series {
            let below = base.clone();
            let line = series.values.iter().zip(&below).map(|(value, below)| {
                if self.stacked {
                    Some(value.unwrap_or(0.0) + below)
                } else {
                    *value
                }
            });
            let line: Vec<Option<f64>> = line.collect();
            if self.stacked {
                base = line.iter().map(|value| value.unwrap_or(0.0)).collect();
            }
            lines.push((line, below));
        }
        lines
    }

    /// The plot as an element.
    pub fn svg(&self) -> String {
        let lines = self.lines();
        let largest = lines
            .iter()
            .flat_map(|(line, _)| line.iter().flatten())
            .fold(0.0, |a: f64, b| a.max(*b));
        // An axis without values ends at 1; a margin keeps the largest value off the edge.
        let top = if largest > 0.0 { largest * 1.04 } else { 1.0 };
        let (first, last) =
            (self.times.first().copied().unwrap_or(0.0), self.times.last().copied().unwrap_or(1.0));
        let span = (last - first).max(0.001);
        let x = |time: f64| LEFT + (time - first) / span * (WIDTH - LEFT - 10.0);
        let y = |value: f64| TOP + (1.0 - value / top) * (HEIGHT - TOP - 30.0);
        let mut svg = format!("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-size=\"11\" font-family=\"sans-serif\">\n");
        // Writing to a string does not fail.
        for value in ticks(top, self.units) {
            let at = y(value);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>",
                WIDTH - 10.0
            );
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                escape(&(self.format)(value))
            );
        }
        let decimals = decimals(tick(span, Units::Decimal));
        for time in ticks(span, Units::Decimal) {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{time:.decimals$} s</text>",
                x(first + time),
                HEIGHT - 12.0,
            );
        }
        // Draw the lowest series last.
        for (index, (line, below)) in lines.iter().enumerate().rev() {
            let color = COLORS[index % COLORS.len()];
            let known: Vec<(f64, f64, f64)> = self
                .times
                .iter()
                .zip(line.iter().zip(below))
                .filter_map(|(time, (value, below))| Some((*time, (*value)?, *below)))
                .collect();
            let up =
                known.iter().map(|(time, value, _)| format!("{:.1},{:.1}", x(*time), y(*value)));
            let name = escape(&self.series[index].name);
            let _ = if self.stacked {
                let down = known
                    .iter()
                    .rev()
                    .map(|(time, _, below)| format!("{:.1},{:.1}", x(*time), y(*below)));
                let points = up.chain(down).collect::<Vec<_>>().join(" ");
                writeln!(svg, "<polygon data-series=\"{name}\" points=\"{points}\" fill=\"{color}\" fill-opacity=\"0.7\"/>")
            } else {
                let points = up.collect::<Vec<_>>().join(" ");
                writeln!(svg, "<polyline data-series=\"{name}\" points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>")
            };
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// Names and colours.
    pub fn legend(&self) -> String {
        let entry = |(index, series): (usize, &Series)| {
            let color = COLORS[index % COLORS.len()];
            format!("<span style=\"color:{color}\">&#9632;</span> {}", escape(&series.name))
        };
        self.series.iter().enumerate().map(entry).collect::<Vec<_>>().join(" &nbsp; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, values: &[f64]) -> Series {
        Series { name: name.to_string(), values: values.iter().map(|value| Some(*value)).collect() }
    }

    #[test]
    fn ticks_are_round_numbers() {
        let mib = 1024.0 * 1024.0;
        assert_eq!(ticks(19.1 * mib, Units::Binary), [0.0, 4.0, 8.0, 12.0, 16.0].map(|n| n * mib));
        assert_eq!(ticks(1.0 * mib, Units::Binary).last(), Some(&mib));
        assert_eq!(ticks(9.05, Units::Decimal), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(ticks(10.0, Units::Decimal), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(1.0, Units::Decimal).len(), 6);
        for largest in [0.013, 0.7, 3.0, 37.0, 600.0, 12345.0, 5e9] {
            for units in [Units::Decimal, Units::Binary] {
                let ticks = ticks(largest, units);
                assert!((3..=6).contains(&ticks.len()), "{largest} {units:?}: {ticks:?}");
                assert!(ticks.iter().all(|tick| *tick <= largest * 1.001), "{ticks:?}");
            }
        }
        assert_eq!([decimals(0.05), decimals(0.5), decimals(2.0)], [2, 1, 0]);
    }

    #[test]
    fn largest_value_spans_the_height() {
        for largest in [2.1, 5.01, 19.1 * 1024.0 * 1024.0, 1e6] {
            let all = [series("a", &[0.0, largest])];
            let chart = Chart {
                times: &[0.0, 1.0],
                series: &all,
                format: |value| value.to_string(),
                units: Units::Binary,
                stacked: false,
            };
            let svg = chart.svg();
            let points = svg.split("points=\"").nth(1).and_then(|rest| rest.split('"').next());
            let top = points.and_then(|points| points.rsplit(',').next()).unwrap();
            assert!(top.parse::<f64>().unwrap() < TOP + 0.1 * (HEIGHT - TOP - 30.0), "{top}");
        }
    }

    #[test]
    fn stacked_series_are_summed() {
        let all = [series("a", &[1.0, 2.0]), series("b", &[3.0, 4.0])];
        let chart = Chart {
            times: &[0.0, 1.0],
            series: &all,
            format: |value| value.to_string(),
            units: Units::Decimal,
            stacked: true,
        };
        let lines = chart.lines();
        assert_eq!(lines[1].0, [Some(4.0), Some(6.0)]);
        assert_eq!(lines[1].1, [1.0, 2.0]);
        let svg = chart.svg();
        assert_eq!(svg.matches("<polygon ").count(), 2);
        assert!(svg.contains(">6<"), "{svg}");
    }

    #[test]
    fn gaps_are_left_out() {
        let mut gap = series("a<b", &[1.0, 2.0, 3.0]);
        gap.values[1] = None;
        let chart = Chart {
            times: &[0.0, 1.0, 2.0],
            series: &[gap],
            format: |value| value.to_string(),
            units: Units::Decimal,
            stacked: false,
        };
        let svg = chart.svg();
        let points = svg.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        assert_eq!(points.split(' ').count(), 2);
        assert!(svg.contains("data-series=\"a&lt;b\""));
        assert!(chart.legend().contains("a&lt;b"));
    }
}
