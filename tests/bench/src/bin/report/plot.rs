// SPDX-License-Identifier: GPL-2.0
//! Plots: the cost of each row against the size, and scaling with engines.

use super::results::Results;
use serde_json::Value;
use std::fmt::Write;

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 190.0;
const COLUMNS: usize = 4;
const COLOURS: [&str; 4] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd"];

/// A line: its name and its points.
type Line = (String, Vec<(f64, f64)>);

/// Draws one plot with a logarithmic x axis and a y axis that begins at 0.
fn plot(svg: &mut String, at: (f64, f64), title: &str, unit: &str, lines: &[Line]) {
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let xs: Vec<f64> = points().map(|(x, _)| x.log2()).collect();
    let top = points().map(|(_, y)| y).fold(0.0, f64::max).max(1e-9) * 1.1;
    let (low, high) =
        (xs.iter().copied().fold(f64::MAX, f64::min), xs.iter().copied().fold(0.0, f64::max));
    let left = at.0 + 50.0;
    let bottom = at.1 + HEIGHT - 40.0;
    let wide = WIDTH - 70.0;
    let tall = HEIGHT - 70.0;
    let x = |value: f64| left + wide * (value.log2() - low) / (high - low).max(1e-9);
    let y = |value: f64| bottom - tall * value / top;
    let text = |svg: &mut String, x: f64, y: f64, anchor: &str, text: &str| {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ =
            writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
    };
    text(svg, at.0 + WIDTH / 2.0, at.1 + 16.0, "middle", title);
    let _ = writeln!(
        svg,
        "<path d=\"M{left:.1} {:.1}V{bottom:.1}H{:.1}\" fill=\"none\" stroke=\"#444\"/>",
        bottom - tall,
        left + wide
    );
    for part in [0.0, 0.5, 1.0] {
        text(svg, left - 4.0, y(top * part) + 4.0, "end", &format!("{:.0}", top * part));
    }
    let mut ticks: Vec<f64> = points().map(|(x, _)| x).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    for tick in ticks {
        text(svg, x(tick), bottom + 14.0, "middle", &format!("{tick:.0}"));
    }
    text(svg, left + wide / 2.0, bottom + 28.0, "middle", unit);
    for (index, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mut path = String::new();
        for (index, (px, py)) in points.iter().enumerate() {
            let _ =
                write!(path, "{}{:.1} {:.1}", if index == 0 { "M" } else { "L" }, x(*px), y(*py));
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\" fill=\"{colour}\"/>",
                x(*px),
                y(*py)
            );
        }
        let _ = writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\"/>");
        let _ = writeln!(svg, "<g fill=\"{colour}\">");
        text(svg, left + 6.0, bottom - tall + 12.0 * (index as f64 + 1.0), "start", name);
        let _ = writeln!(svg, "</g>");
    }
}

fn sheet(plots: &[(String, String, Vec<Line>)]) -> String {
    let rows = plots.len().div_ceil(COLUMNS).max(1);
    let columns = plots.len().clamp(1, COLUMNS);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        columns as f64 * WIDTH,
        rows as f64 * HEIGHT
    );
    for (index, (title, unit, lines)) in plots.iter().enumerate() {
        let at = ((index % COLUMNS) as f64 * WIDTH, (index / COLUMNS) as f64 * HEIGHT);
        plot(&mut svg, at, title, unit, lines);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Plots the cost of each row against the size, with a line for each driver.
pub fn sizes(results: &[Results]) -> String {
    let mut plots = Vec::new();
    let names = results.iter().flat_map(|result| &result.sizes).flat_map(|size| &size.rows);
    let mut seen: Vec<(String, String)> = Vec::new();
    for row in names {
        if !seen.iter().any(|(name, _)| *name == row.row) {
            seen.push((row.row.clone(), row.unit.clone()));
        }
    }
    for (name, unit) in seen {
        let line = |result: &Results| {
            let point = |size: &super::results::Size| Some((size.mib as f64, size.cost(&name)?));
            (result.driver.clone(), result.sizes.iter().filter_map(point).collect::<Vec<_>>())
        };
        let lines = results.iter().map(line).filter(|(_, points)| !points.is_empty()).collect();
        plots.push((name.clone(), format!("MiB; per {unit}"), lines));
    }
    sheet(&plots)
}

/// Plots faults against engines, with a line for linear scaling.
pub fn scaling(run: &Value) -> String {
    let mut plots = Vec::new();
    for row in run["rows"].as_array().into_iter().flatten() {
        let points: Vec<(f64, f64)> = row["points"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|point| Some((point["engines"].as_f64()?, point["value"].as_f64()?)))
            .collect();
        let first = points.first().copied().unwrap_or((1.0, 0.0));
        let linear = points.iter().map(|(x, _)| (*x, first.1 * x / first.0)).collect();
        let name = |key: &str| row[key].as_str().unwrap_or_default().to_string();
        let lines = vec![("measured".to_string(), points), ("linear".to_string(), linear)];
        plots.push((name("row"), "engines".to_string(), lines));
    }
    sheet(&plots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plot_has_a_line_for_each_driver() {
        let text = r#"{"driver":"D","sizes":[{"mib":1,"rows":[{"row":"a < b","unit":"page","cost":5.0,"rounds":[5.0]}]},
            {"mib":32,"rows":[{"row":"a < b","unit":"page","cost":4.0,"rounds":[4.0]}]}]}"#;
        let result = || serde_json::from_str::<Results>(text).expect("a result");
        let svg = sizes(&[result(), result()]);
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
    }
}
