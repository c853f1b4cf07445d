// SPDX-License-Identifier: GPL-2.0
//! `hmmctl report`: an HTML page with plots of a record. It is self-contained.

use crate::chart::{
    Chart,
    Series,
    Units, //
};
use crate::picture::escape;
use crate::problem::{
    Problem,
    Result, //
};
use crate::record::Record;
use crate::sample::{
    Between,
    Device,
    Mirror,
    Sample, //
};
use crate::table::bytes;
use crate::top::rate;
use serde_json::{
    json,
    Value, //
};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

/// Arguments of `hmmctl report`.
#[derive(clap::Args)]
pub struct Args {
    /// Output of `hmmctl record`
    file: PathBuf,
    /// File that the page is written to
    #[arg(long, short, value_name = "FILE", required_unless_present = "json")]
    output: Option<PathBuf>,
    /// Print the plotted values as JSON
    #[arg(long)]
    json: bool,
}

/// One plot with its series.
struct Plot {
    /// Short name, for JSON.
    key: &'static str,
    title: &'static str,
    format: fn(f64) -> String,
    units: Units,
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

/// The `most` series with the largest sums, and the sum of all others as one more.
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

/// Whether a series has any non-zero value.
fn used(series: &Series) -> bool {
    series.values.iter().flatten().any(|value| *value != 0.0)
}

/// All mirrors of the record, with their names in plots.
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
    let page = record.head.page_size as f64;
    let each = |name: String, value: &dyn Fn(&Sample) -> Option<f64>| Series {
        name,
        values: samples.iter().map(value).collect(),
    };
    // The change between two samples is shown at the time of the second one.
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
                Some(sample.mirror(number).map_or(0.0, |mirror| pages(mirror) as f64 * page))
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
        each(name.clone(), &|sample| Some(sample.device(*number)?.used as f64 * page))
    });
    let of_mirrors = |between: &Between, value: fn(&Mirror) -> u64| {
        let sum: u64 = between.now.mirrors.iter().map(|mirror| between.mirror(mirror, value)).sum();
        Some(between.rate(sum))
    };
    let of_devices = |between: &Between, value: fn(&Device) -> u64| {
        let sum: u64 = between.now.devices.iter().map(|device| between.device(device, value)).sum();
        Some(between.rate(sum))
    };
    let times_page = |rate: Option<f64>| rate.map(|rate| rate * page);
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
    let plot = |key, title, format, units, stacked, series| Plot {
        key,
        title,
        format,
        units,
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
                Units::Binary,
                true,
                residency,
            ),
            plot("memory", "Device memory in use", bytes, Units::Binary, false, memory.collect()),
            plot("faults", "Faults", per_second, Units::Decimal, false, faults),
            plot("moved", "Bytes moved", bytes_per_second, Units::Binary, false, moved),
            plot(
                "stalled",
                "Time that devices waited for faults",
                milliseconds,
                Units::Decimal,
                false,
                stalled.collect(),
            ),
            plot(
                "phases",
                "Time of the phases of faults and migrations",
                milliseconds,
                Units::Decimal,
                true,
                phases.collect(),
            ),
        ],
    }
}

/// Totals of the whole record. Events are exact, while samples miss the activity of a mirror
/// between its last sample and its end. Counters are used if events were lost.
fn totals(record: &Record) -> Vec<(&'static str, u64)> {
    match record.lost {
        0 => totals_of_events(record),
        _ => totals_of_counters(record),
    }
}

fn totals_of_events(record: &Record) -> Vec<(&'static str, u64)> {
    let named =
        |name: &'static str| record.events.iter().filter(move |event| event["event"] == name);
    let count = |name| named(name).count() as u64;
    let moved = |name, direction: &str| -> u64 {
        let events =
            named(name).filter(|event| direction.is_empty() || event["direction"] == *direction);
        events.filter_map(|event| event["moved"].as_u64()).sum()
    };
    vec![
        ("device faults", count("device_fault")),
        ("migrations", count("migrate_end")),
        ("pages to devices", moved("migrate_end", "to-device")),
        ("pages to the system", moved("migrate_end", "to-system")),
        ("invalidations", count("invalidate")),
        ("retries", count("retry")),
        ("CPU faults", count("cpu_fault")),
        ("pages by CPU faults", moved("cpu_fault", "")),
        ("pages evicted", moved("evict", "")),
    ]
}

fn totals_of_counters(record: &Record) -> Vec<(&'static str, u64)> {
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
    html.push_str(match record.lost {
        0 => "<p>Sums are counted from events; a migration counts when it ends. One that was under way when the record \
              began has no <i>migrate_begin</i>, one that was under way at the end has no <i>migrate_end</i>. Plots are \
              drawn from samples: they miss what a mirror did after its last sample.</p>\n",
        _ => "<p>Events were lost: sums are of the counters in the samples. They miss what a mirror did after its last \
              sample.</p>\n",
    });
    for plot in &plots {
        // Omit unused devices and phases from the plot and its legend.
        let used: Vec<Series> = plot.series.iter().filter(|series| used(series)).cloned().collect();
        let chart = Chart {
            times: &times,
            series: &used,
            format: plot.format,
            units: plot.units,
            stacked: plot.stacked,
        };
        let legend =
            if used.is_empty() { "Nothing in this record.".to_string() } else { chart.legend() };
        // Writing to a String never fails.
        let _ = write!(
            html,
            "<h2 id=\"{}\">{}</h2>\n{}<p>{}</p>\n",
            plot.key,
            plot.title,
            chart.svg(),
            legend
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
        assert_eq!(object["totals"]["device faults"], 2);
        assert_eq!(object["events"]["device_fault"], 2);
    }

    #[test]
    fn sums_agree_with_the_events() {
        let mut record = example();
        let mut known = crate::events::tests::known();
        let each = crate::events::tests::one_of_each();
        record.events = each.iter().map(|event| crate::events::object(event, &mut known)).collect();
        // A migration that was in progress when the record began.
        record.events.push(json!({"event": "migrate_end", "direction": "to-system", "moved": 3}));
        let object = object(&record);
        let totals = &object["totals"];
        assert_eq!(totals["migrations"], object["events"]["migrate_end"]);
        assert_eq!(
            (&totals["pages to devices"], &totals["pages to the system"]),
            (&json!(4), &json!(3))
        );
        assert_eq!(
            (&totals["pages by CPU faults"], &totals["pages evicted"]),
            (&json!(16), &json!(512))
        );
        for name in crate::events::NAMES {
            assert!(html(&record).contains(&format!("<td>{name}</td>")), "no row {name}");
        }
        assert!(html(&record).contains("<td>invalidate</td><td>1</td>"));
    }

    #[test]
    fn lost_events_leave_the_counters() {
        let mut record = example();
        record.lost = 1;
        assert_eq!(object(&record)["totals"]["device faults"], 20);
        assert!(html(&record).contains("Events were lost"));
    }

    #[test]
    fn legends_have_used_devices_only() {
        let html = html(&example());
        assert!(html.contains("</span> device 0") && !html.contains("</span> device 1"), "{html}");
    }

    #[test]
    fn later_mirrors_count_from_zero() {
        let mut record = example();
        record.lost = 1;
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
    fn many_series_are_merged() {
        let series =
            |value: f64| Series { name: value.to_string(), values: vec![None, Some(value)] };
        let all = few((1..=20).map(|value| series(f64::from(value))).collect(), 4);
        assert_eq!(all.len(), 4);
        assert_eq!(all[0].name, "20");
        assert_eq!((all[3].name.as_str(), &all[3].values), ("17 others", &vec![None, Some(153.0)]));
    }
}
