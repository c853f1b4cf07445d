// SPDX-License-Identifier: GPL-2.0
//! Plots over time, in SVG.

use crate::picture::escape;
use std::fmt::Write;

/// Colours of series.
const COLORS: [&str; 8] =
    ["#3f8f3a", "#2f6db5", "#c0392b", "#b8860b", "#8e44ad", "#16808a", "#7f5539", "#5d6d7e"];

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 10.0;

/// A line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// A value for each time; nothing where there is none.
    pub values: Vec<Option<f64>>,
}

/// A plot.
pub struct Chart<'a> {
    /// Seconds.
    pub times: &'a [f64],
    /// What is drawn.
    pub series: &'a [Series],
    /// How values are written.
    pub format: fn(f64) -> String,
    /// One above the other, or each from zero.
    pub stacked: bool,
}

/// A number of few digits that is at least `value`.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let scale = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    steps.into_iter().map(|step| step * scale).find(|step| *step >= value).unwrap_or(value)
}

impl Chart<'_> {
    /// The lines that are drawn, from below, and what each stands on.
    fn lines(&self) -> Vec<(Vec<Option<f64>>, Vec<f64>)> {
        let mut base = vec![0.0; self.times.len()];
        let mut lines = Vec::new();
        for series in self.series {
            let below = base.clone();
            let line = series.values.iter().zip(&below).map(|(value, below)| match self.stacked {
                true => Some(value.unwrap_or(0.0) + below),
                false => *value,
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
        let top = round_up(largest);
        let (first, last) =
            (self.times.first().copied().unwrap_or(0.0), self.times.last().copied().unwrap_or(1.0));
        let span = (last - first).max(0.001);
        let x = |time: f64| LEFT + (time - first) / span * (WIDTH - LEFT - 10.0);
        let y = |value: f64| TOP + (1.0 - value / top) * (HEIGHT - TOP - 30.0);
        let mut svg = format!("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-size=\"11\" font-family=\"sans-serif\">\n");
        // Writing to a string does not fail.
        for step in 0..=4 {
            let value = top * f64::from(step) / 4.0;
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
        for step in 0..=5 {
            let time = first + span * f64::from(step) / 5.0;
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{:.2} s</text>",
                x(time),
                HEIGHT - 12.0,
                time - first
            );
        }
        // What lies below is drawn last.
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
    fn axes_end_with_round_numbers() {
        assert_eq!(
            [round_up(0.0), round_up(1.0), round_up(2.2), round_up(37.0), round_up(600.0)],
            [1.0, 1.0, 2.5, 50.0, 1000.0]
        );
    }

    #[test]
    fn stacks_stand_on_each_other() {
        let all = [series("a", &[1.0, 2.0]), series("b", &[3.0, 4.0])];
        let chart = Chart {
            times: &[0.0, 1.0],
            series: &all,
            format: |value| value.to_string(),
            stacked: true,
        };
        let lines = chart.lines();
        assert_eq!(lines[1].0, [Some(4.0), Some(6.0)]);
        assert_eq!(lines[1].1, [1.0, 2.0]);
        let svg = chart.svg();
        assert_eq!(svg.matches("<polygon ").count(), 2);
        assert!(svg.contains(">10<"), "{svg}");
    }

    #[test]
    fn gaps_are_left_out() {
        let mut gap = series("a<b", &[1.0, 2.0, 3.0]);
        gap.values[1] = None;
        let chart = Chart {
            times: &[0.0, 1.0, 2.0],
            series: &[gap],
            format: |value| value.to_string(),
            stacked: false,
        };
        let svg = chart.svg();
        let points = svg.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        assert_eq!(points.split(' ').count(), 2);
        assert!(svg.contains("data-series=\"a&lt;b\""));
        assert!(chart.legend().contains("a&lt;b"));
    }
}
