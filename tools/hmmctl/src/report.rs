// SPDX-License-Identifier: GPL-2.0
//! `hmmctl report`: a page with plots of a record. It needs nothing but a browser.

use crate::chart::{Chart, Series};
use crate::picture::escape;
use crate::problem::{Problem, Result};
use crate::record::Record;
use crate::sample::{Between, Device, Mirror, Sample, PAGE};
use crate::table::bytes;
use crate::top::rate;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

/// Arguments of `hmmctl report`.
#[derive(clap::Args)]
pub struct Args {
    /// What `hmmctl record` has written
    file: PathBuf,
    /// Where the page goes
    #[arg(long, short, value_name = "FILE", required_unless_present = "json")]
    output: Option<PathBuf>,
    /// Print what is plotted, as JSON
    #[arg(long)]
    json: bool,
}

/// One plot with its series.
struct Plot {
    /// Short, for JSON.
    key: &'static str,
    title: &'static str,
    format: fn(f64) -> String,
    stacked: bool,
    series: Vec<Series>,
}

/// All series of a record, by the times of its samples.
struct Plots {
    times: Vec<f64>,
    plots: Vec<Plot>,
}

fn per_second(value: f64) -> String {
    format!("{}/s", rate(value))
}

fn bytes_per_second(value: f64) -> String {
    format!("{}/s", bytes(value))
}

fn milliseconds(value: f64) -> String {
    format!("{value:.1} ms/s")
}

/// Those with the largest values; the others are one.
fn few(series: Vec<Series>, most: usize) -> Vec<Series> {
    let sum = |series: &Series| series.values.iter().flatten().sum::<f64>();
    if series.len() <= most {
        return series;
    }
    let mut series = series;
    series.sort_by(|a, b| sum(b).total_cmp(&sum(a)));
    let rest = series.split_off(most - 1);
    let mut values = vec![None; rest.first().map_or(0, |series| series.values.len())];
    for series in &rest {
        for (sum, value) in values.iter_mut().zip(&series.values) {
            *sum = match (*sum, value) {
                (Some(sum), Some(value)) => Some(sum + value),
                (sum, value) => sum.or(*value),
            };
        }
    }
    series.push(Series { name: format!("{} others", rest.len()), values });
    series
}

/// Mirrors that have ever been there, with what they are called.
fn mirrors(record: &Record) -> BTreeMap<u32, String> {
    let all = record.samples.iter().flat_map(|sample| &sample.mirrors);
    all.map(|mirror| {
        let device = crate::top::device_name(mirror.device);
        (mirror.mirror, format!("{} {} on device {device}", mirror.comm, mirror.pid))
    })
    .collect()
}

fn plots(record: &Record) -> Plots {
    let samples = &record.samples;
    let each = |name: String, value: &dyn Fn(&Sample) -> Option<f64>| Series {
        name,
        values: samples.iter().map(value).collect(),
    };
    // What happens between two samples is told at the second.
    let changes = |name: String, value: &dyn Fn(&Between) -> Option<f64>| {
        let pairs = samples
            .windows(2)
            .map(|pair| Between { before: pair[0].clone(), now: pair[1].clone() });
        let values =
            std::iter::once(None).chain(pairs.map(|pair| value(&pair))).take(samples.len());
        Series { name, values: values.collect() }
    };
    let mirrors = mirrors(record);
    let mut residency = Vec::new();
    for (number, name) in &mirrors {
        let pages = |pages: fn(&Mirror) -> u64| {
            let number = *number;
            move |sample: &Sample| {
                Some(sample.mirror(number).map_or(0.0, |mirror| pages(mirror) as f64 * PAGE))
            }
        };
        residency
            .push(each(format!("{name}: device memory"), &pages(|mirror| mirror.device_pages)));
        residency.push(each(
            format!("{name}: system memory"),
            &pages(|mirror| mirror.system_pages + mirror.exclusive_pages),
        ));
    }
    let devices: BTreeMap<u32, String> = samples
        .iter()
        .flat_map(|sample| &sample.devices)
        .map(|device| (device.device, format!("device {}", device.device)))
        .collect();
    let memory = devices.iter().map(|(number, name)| {
        each(name.clone(), &|sample| Some(sample.device(*number)?.used as f64 * PAGE))
    });
    let of_mirrors = |between: &Between, value: fn(&Mirror) -> u64| {
        let sum: u64 = between.now.mirrors.iter().map(|mirror| between.mirror(mirror, value)).sum();
        Some(between.rate(sum))
    };
    let of_devices = |between: &Between, value: fn(&Device) -> u64| {
        let sum: u64 = between.now.devices.iter().map(|device| between.device(device, value)).sum();
        Some(between.rate(sum))
    };
    let times_page = |rate: Option<f64>| rate.map(|rate| rate * PAGE);
    let faults = vec![
        changes("device faults".into(), &|between| {
            of_mirrors(between, |mirror| mirror.get("faults"))
        }),
        changes("CPU faults".into(), &|between| {
            of_devices(between, |device| device.get("cpu_faults"))
        }),
    ];
    let moved = vec![
        changes("to devices".into(), &|between| {
            times_page(of_mirrors(between, |mirror| mirror.get("to_device")))
        }),
        changes("to the system".into(), &|between| {
            times_page(of_mirrors(between, |mirror| mirror.get("to_system")))
        }),
        changes("by CPU faults".into(), &|between| {
            times_page(of_devices(between, |device| device.get("cpu_fault_pages")))
        }),
        changes("evicted".into(), &|between| {
            times_page(of_devices(between, |device| device.get("evicted")))
        }),
    ];
    let stalled = mirrors.iter().map(|(number, name)| {
        changes(name.clone(), &|between| {
            let mirror = between.now.mirror(*number)?;
            Some(between.rate(between.mirror(mirror, |mirror| mirror.get("fault_ns"))) / 1e6)
        })
    });
    let names: std::collections::BTreeSet<&String> =
        samples.iter().flat_map(|sample| sample.phases.keys()).collect();
    let phases = names.into_iter().map(|name| {
        changes(name.clone(), &|between| Some(between.rate(between.phase(name).ns) / 1e6))
    });
    let plot = |key, title, format, stacked, series| Plot {
        key,
        title,
        format,
        stacked,
        series: few(series, 8),
    };
    let first = samples.first().map_or(0.0, |sample| sample.time);
    Plots {
        times: samples.iter().map(|sample| sample.time - first).collect(),
        plots: vec![
            plot(
                "residency",
                "Where the pages are that devices have mapped",
                bytes,
                true,
                residency,
            ),
            plot("memory", "Device memory in use", bytes, false, memory.collect()),
            plot("faults", "Faults", per_second, false, faults),
            plot("moved", "Bytes moved", bytes_per_second, false, moved),
            plot(
                "stalled",
                "Time that devices waited for faults",
                milliseconds,
                false,
                stalled.collect(),
            ),
            plot(
                "phases",
                "Time of the phases of faults and migrations",
                milliseconds,
                true,
                phases.collect(),
            ),
        ],
    }
}

/// Sums of the whole record.
fn totals(record: &Record) -> Vec<(&'static str, u64)> {
    let grown = |value: fn(&Mirror) -> u64| {
        let mut sums: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let known: Vec<u32> = record.samples.first().map_or(Vec::new(), |sample| {
            sample.mirrors.iter().map(|mirror| mirror.mirror).collect()
        });
        for mirror in record.samples.iter().flat_map(|sample| &sample.mirrors) {
            let first = if known.contains(&mirror.mirror) { value(mirror) } else { 0 };
            sums.entry(mirror.mirror).or_insert((first, 0)).1 = value(mirror);
        }
        sums.values().map(|(first, last)| last.saturating_sub(*first)).sum()
    };
    let device = |value: fn(&Device) -> u64| match (record.samples.first(), record.samples.last()) {
        (Some(before), Some(now)) => {
            let between = Between { before: before.clone(), now: now.clone() };
            between.now.devices.iter().map(|device| between.device(device, value)).sum()
        }
        _ => 0,
    };
    vec![
        ("device faults", grown(|mirror| mirror.get("faults"))),
        ("migrations", grown(|mirror| mirror.get("migrations"))),
        ("pages to devices", grown(|mirror| mirror.get("to_device"))),
        ("pages to the system", grown(|mirror| mirror.get("to_system"))),
        ("invalidations", grown(|mirror| mirror.get("invalidations"))),
        ("retries", grown(|mirror| mirror.get("retries"))),
        ("CPU faults", device(|device| device.get("cpu_faults"))),
        ("pages by CPU faults", device(|device| device.get("cpu_fault_pages"))),
        ("pages evicted", device(|device| device.get("evicted"))),
    ]
}

fn object(record: &Record) -> Value {
    let Plots { times, plots } = plots(record);
    let series = |series: &Series| json!({ "name": series.name, "values": series.values });
    let plots: serde_json::Map<_, _> = plots
        .iter()
        .map(|plot| {
            (plot.key.to_string(), json!(plot.series.iter().map(series).collect::<Vec<_>>()))
        })
        .collect();
    let totals: serde_json::Map<_, _> =
        totals(record).into_iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
    json!({
        "command": record.head.command,
        "kernel": record.head.kernel,
        "times": times,
        "series": plots,
        "totals": totals,
        "events": record.counts(),
        "lost": record.lost,
    })
}

fn table(caption: &str, rows: impl Iterator<Item = (String, String)>) -> String {
    let row = |(name, value): (String, String)| {
        format!("<tr><td>{}</td><td>{}</td></tr>\n", escape(&name), escape(&value))
    };
    format!("<table><caption>{caption}</caption>\n{}</table>\n", rows.map(row).collect::<String>())
}

fn html(record: &Record) -> String {
    let Plots { times, plots } = plots(record);
    let what = match record.head.command.as_slice() {
        [] => "A while".to_string(),
        command => command.join(" "),
    };
    let seconds = times.last().copied().unwrap_or(0.0);
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>hmmctl report</title>\n<style>\n\
         body {{ font-family: sans-serif; max-width: 900px; margin: 2em auto; color: #222; }}\n\
         table {{ border-collapse: collapse; display: inline-table; margin-right: 3em; vertical-align: top; }}\n\
         td {{ padding: 2px 12px 2px 0; border-bottom: 1px solid #ddd; }}\n\
         td:last-child {{ text-align: right; }}\n caption {{ text-align: left; font-weight: bold; }}\n\
         </style>\n</head>\n<body>\n<h1>{}</h1>\n<p>{seconds:.2} s, {} samples, {} events, {} lost; kernel {}</p>\n",
        escape(&what),
        record.samples.len(),
        record.events.len(),
        record.lost,
        escape(&record.head.kernel),
    );
    html.push_str(&table(
        "In sum",
        totals(record).into_iter().map(|(name, value)| (name.to_string(), value.to_string())),
    ));
    html.push_str(&table(
        "Events",
        record.counts().into_iter().map(|(name, value)| (name, value.to_string())),
    ));
    for plot in &plots {
        let chart = Chart {
            times: &times,
            series: &plot.series,
            format: plot.format,
            stacked: plot.stacked,
        };
        // Writing to a string does not fail.
        let _ = write!(
            html,
            "<h2 id=\"{}\">{}</h2>\n{}<p>{}</p>\n",
            plot.key,
            plot.title,
            chart.svg(),
            chart.legend()
        );
    }
    html.push_str("</body>\n</html>\n");
    html
}

/// Runs `hmmctl report`.
pub fn run(args: &Args) -> Result<()> {
    let record = Record::read(&args.file)?;
    if let Some(file) = &args.output {
        std::fs::write(file, html(&record)).map_err(|error| Problem::io("write", file, error))?;
    }
    if args.json {
        let text = format!("{}\n", object(&record));
        std::io::stdout().lock().write_all(text.as_bytes()).map_err(Problem::output)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::example;

    #[test]
    fn series_have_a_value_for_each_time() {
        let object = object(&example());
        assert_eq!(object["times"], json!([0.0, 2.0]));
        assert_eq!(object["series"]["faults"][0]["values"], json!([null, 10.0]));
        assert_eq!(object["series"]["residency"][0]["values"], json!([1228800.0, 1228800.0]));
        assert_eq!(object["series"]["memory"][0]["values"], json!([1228800.0, 1228800.0]));
        assert_eq!(object["series"]["phases"][0]["values"], json!([null, 250.0]));
        assert_eq!(object["series"]["moved"][0]["values"], json!([null, 1048576.0]));
        assert_eq!(object["totals"]["device faults"], 20);
        assert_eq!(object["events"]["device_fault"], 2);
    }

    #[test]
    fn mirrors_that_come_later_count_from_nothing() {
        let mut record = example();
        record.samples[0].mirrors.clear();
        let object = object(&record);
        assert_eq!(object["totals"]["device faults"], 31);
        assert_eq!(object["series"]["residency"][0]["values"], json!([0.0, 1228800.0]));
    }

    #[test]
    fn pages_have_a_plot_for_each() {
        let html = html(&example());
        assert_eq!(html.matches("<svg ").count(), 6);
        for id in ["residency", "faults", "moved", "phases"] {
            assert!(html.contains(&format!("<h2 id=\"{id}\">")), "no {id}");
        }
        assert!(html.contains("<h1>a&lt;b</h1>"));
        assert!(
            !html.contains("http://")
                || html.matches("http://").count()
                    == html.matches("http://www.w3.org/2000/svg").count()
        );
    }

    #[test]
    fn many_series_become_few() {
        let series =
            |value: f64| Series { name: value.to_string(), values: vec![None, Some(value)] };
        let all = few((1..=20).map(|value| series(f64::from(value))).collect(), 4);
        assert_eq!(all.len(), 4);
        assert_eq!(all[0].name, "20");
        assert_eq!((all[3].name.as_str(), &all[3].values), ("17 others", &vec![None, Some(153.0)]));
    }
}
