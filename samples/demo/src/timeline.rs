// SPDX-License-Identifier: GPL-2.0
//! Timeline of an engine's read rate while its memory migrates, for faultless and for ordinary
//! migration.

use anyhow::{
    ensure,
    Context,
    Result, //
};
use hmm::{
    engine::Way,
    Command,
    Device,
    EngineOp,
    Mapping,
    Setting, //
};
use std::{
    fmt::Write,
    sync::atomic::{
        AtomicBool,
        Ordering::Relaxed, //
    },
    time::{
        Duration,
        Instant, //
    }, //
};

/// MiB that the engine reads, in small pages.
const MIB: usize = 8;
/// Delay of each copy, in microseconds, so that migrating all pages takes visible time.
const COPY_DELAY_US: u64 = 50;
/// Minimal time between two samples. It is longer on a busy machine.
const SLICE: Duration = Duration::from_millis(50);
/// Time without a migration before and after each migration.
const STILL: Duration = Duration::from_millis(250);

/// One sample.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Time of the sample, in seconds.
    pub at: f64,
    /// Read rate since the previous sample, in MiB per second.
    pub rate: f64,
}

/// One migration.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    /// Begin and end, in seconds.
    pub begin: f64,
    pub end: f64,
    /// Whether it was a migration to the device.
    pub to_device: bool,
}

/// Measurements of one kind of migration.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name of the kind.
    pub name: &'static str,
    pub samples: Vec<Sample>,
    pub moves: Vec<Move>,
    /// Reads that faulted.
    pub faults: u64,
    /// Time that reads waited, in milliseconds.
    pub stall_ms: f64,
}

/// Measures one kind of migration, with a copy delay: two round trips.
pub fn measure(device: &Device, faultless: bool) -> Result<Line> {
    let old = device.set(Setting::CopyDelay, COPY_DELAY_US * 1000).context("copy delay")?;
    let line = trips(device, faultless);
    // The delay is a setting of the device and outlives this process, so restore it after an error,
    // too.
    device.set(Setting::CopyDelay, old).context("copy delay")?;
    line
}

fn trips(device: &Device, faultless: bool) -> Result<Line> {
    let map = Mapping::anon_aligned(MIB / 2)?;
    map.fill(1);
    let read = Command::new(EngineOp::Read, map.addr(), map.len());
    let first = device.run(read).context("first pass")?;
    ensure!(first.error.is_none(), "the first pass failed: {:?}", first.error);
    let job = device.submit(read.rounds(0)).context("reader")?;
    // Read both together. Otherwise the first slice would include bytes that were read before it
    // began.
    let begin = Instant::now();
    let before = device.counters()?;
    let stop = AtomicBool::new(false);
    let (samples, moves) = std::thread::scope(|scope| -> Result<_> {
        let sampler = scope.spawn(|| -> Result<Vec<Sample>> {
            let mut last = (begin, before.bytes_read);
            let mut samples = Vec::new();
            while !stop.load(Relaxed) {
                std::thread::sleep(SLICE);
                let at = Instant::now();
                let bytes = device.counters()?.bytes_read;
                let seconds = (at - last.0).as_secs_f64();
                let rate = (bytes - last.1) as f64 / f64::from(1 << 20) / seconds;
                samples.push(Sample { at: (at - begin).as_secs_f64(), rate });
                last = (at, bytes);
            }
            Ok(samples)
        });
        let moves = (|| -> Result<Vec<Move>> {
            let mut moves = Vec::new();
            for _ in 0..2 {
                for way in [Way::ToDevice, Way::ToSystem] {
                    std::thread::sleep(STILL);
                    let from = begin.elapsed().as_secs_f64();
                    device
                        .migrate(map.addr(), map.pages(), way.faultless(faultless))
                        .context("migration")?;
                    let end = begin.elapsed().as_secs_f64();
                    moves.push(Move { begin: from, end, to_device: way == Way::ToDevice });
                }
            }
            std::thread::sleep(STILL);
            Ok(moves)
        })();
        stop.store(true, Relaxed);
        let samples = sampler.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        Ok((samples, moves?))
    })?;
    let after = device.counters()?;
    let ended = job.finish().context("end of the reader")?;
    ensure!(ended.error.is_none(), "the reader failed: {:?}", ended.error);
    Ok(Line {
        name: if faultless { "faultless" } else { "ordinary" },
        samples,
        moves,
        faults: after.engine_faults_read - before.engine_faults_read,
        stall_ms: (after.stall_ns_read - before.stall_ns_read) as f64 / 1e6,
    })
}

/// Returns the time of the last sample of all lines.
fn longest(lines: &[Line]) -> f64 {
    let ends = lines.iter().flat_map(|line| line.samples.last()).map(|sample| sample.at);
    ends.fold(0.1, f64::max)
}

/// Returns the seconds that two spans of time have in common.
fn overlap(a: (f64, f64), b: (f64, f64)) -> f64 {
    (a.1.min(b.1) - a.0.max(b.0)).max(0.0)
}

/// Returns mean rates of slices of equal length. The intervals between samples differ in length.
fn slices(line: &Line, length: f64) -> Vec<f64> {
    let end = line.samples.last().map_or(0.0, |sample| sample.at);
    // A remainder that is only a rounding error is not a slice.
    let count = (end / length - 1e-6).ceil() as usize;
    let mut slices = vec![(0.0, 0.0); count];
    let mut last = 0.0;
    for sample in &line.samples {
        for (number, (mib, seconds)) in slices.iter_mut().enumerate() {
            let begin = number as f64 * length;
            let common = overlap((last, sample.at), (begin, begin + length));
            *mib += sample.rate * common;
            *seconds += common;
        }
        last = sample.at;
    }
    slices.iter().map(|(mib, seconds)| if *seconds > 0.0 { mib / seconds } else { 0.0 }).collect()
}

/// Returns the mark of a slice in which memory moved, however short the slice is.
fn mark(line: &Line, begin: f64, end: f64) -> char {
    let moved = |to_device| -> f64 {
        let moves = line.moves.iter().filter(|one| one.to_device == to_device);
        moves.map(|one| overlap((one.begin, one.end), (begin, end))).sum()
    };
    let there = moved(true);
    let back = moved(false);
    match (there > 0.0, back > 0.0) {
        (false, false) => ' ',
        _ if there >= back => '>',
        _ => '<',
    }
}

/// Maximal number of columns of the text. Together with the names a line fits into 80 columns.
const COLUMNS: f64 = 64.0;

/// Renders a ruler in seconds.
fn ruler(columns: usize, length: f64) -> String {
    let mut ruler = String::new();
    // Leave space for a number and a few dashes.
    let every = (6.0 * length).ceil().max(1.0) as usize;
    for second in (0..).step_by(every) {
        let column = (second as f64 / length).round() as usize;
        let label = format!("+{second}s");
        if column + label.len() > columns {
            break;
        }
        ruler += &"-".repeat(column - ruler.len());
        ruler += &label;
    }
    ruler += &"-".repeat(columns.saturating_sub(ruler.len()));
    ruler
}

/// Renders all lines as text, one character per slice: a bar for the read rate, and below it marks
/// for migrations.
pub fn text(lines: &[Line]) -> String {
    const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    // If the run took longer than `COLUMNS` slices, a column stands for several slices.
    let slice = SLICE.as_secs_f64();
    let length = slice * (longest(lines) / COLUMNS / slice - 1e-6).ceil().max(1.0);
    let rates: Vec<Vec<f64>> = lines.iter().map(|line| slices(line, length)).collect();
    let top = rates.iter().flatten().copied().fold(1.0, f64::max);
    let mut text = format!(
        "What an engine reads while its memory migrates ({:.0} ms a column, full height {top:.0} MiB/s;\n\
         > to the device, < back):\n",
        length * 1000.0
    );
    for (line, rates) in lines.iter().zip(&rates) {
        let level = |rate: &f64| {
            let steps = (LEVELS.len() - 1) as f64;
            LEVELS[((rate / top * steps).round() as usize).min(LEVELS.len() - 1)]
        };
        let bars: String = rates.iter().map(level).collect();
        let begins = (0..rates.len()).map(|number| number as f64 * length);
        let marks: String = begins.map(|begin| mark(line, begin, begin + length)).collect();
        let _ = writeln!(text, "  {:<10}|{bars}|", line.name);
        let _ = writeln!(text, "  {:<10}|{marks}|", "");
        let faults = line.faults;
        let ms = line.stall_ms;
        let _ = writeln!(text, "  {:<10} {faults} read faults, reads waited {ms:.1} ms", "");
    }
    let columns = rates.iter().map(Vec::len).max().unwrap_or(0);
    let _ = writeln!(text, "  {:<10} {}", "", ruler(columns, length));
    text
}

fn highest(lines: &[Line]) -> f64 {
    let rates = lines.iter().flat_map(|line| &line.samples).map(|sample| sample.rate);
    rates.fold(1.0, f64::max)
}

/// Width and height of the plot area, and its top left corner.
const AREA: (f64, f64) = (720.0, 240.0);
const ORIGIN: (f64, f64) = (80.0, 60.0);
/// Colours that differ also for readers with red-green colour blindness.
const COLOURS: [&str; 2] = ["#0072b2", "#d55e00"];

/// Renders all lines as an SVG picture.
pub fn svg(lines: &[Line]) -> String {
    let (width, height) = AREA;
    let (left, top) = ORIGIN;
    let bottom = top + height;
    let highest = (highest(lines) / 100.0).ceil() * 100.0;
    let longest = longest(lines);
    let x = |at: f64| left + at / longest * width;
    let y = |rate: f64| bottom - rate / highest * height;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"24\" font-size=\"16\">What an engine reads while its memory \
         migrates</text>\n",
        left + width + 30.0,
        bottom + 90.0
    );
    for part in 0..=4 {
        let rate = highest * f64::from(part) / 4.0;
        let at = y(rate);
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ccc\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{rate:.0}</text>",
            left + width,
            left - 8.0,
            at + 4.0
        );
    }
    let middle = top + height / 2.0;
    let _ = writeln!(
        svg,
        "<text transform=\"translate(24 {middle}) rotate(-90)\" text-anchor=\"middle\">MiB/s</text>"
    );
    // At most about a dozen labels, so that they do not overlap.
    let every = (longest / 12.0).ceil().max(1.0) as usize;
    for second in (0..=longest as usize).step_by(every) {
        let at = x(second as f64);
        let _ = writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{second} s</text>",
            bottom + 18.0
        );
    }
    for (number, (line, colour)) in lines.iter().zip(COLOURS).enumerate() {
        let mut points =
            format!("{:.1},{:.1}", x(0.0), y(line.samples.first().map_or(0.0, |s| s.rate)));
        for sample in &line.samples {
            let _ = write!(points, " {:.1},{:.1}", x(sample.at), y(sample.rate));
        }
        let _ = writeln!(
            svg,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
        // Strip below the axis that marks the migrations.
        let strip = bottom + 26.0 + 12.0 * number as f64;
        for one in &line.moves {
            let opacity = if one.to_device { "1" } else { "0.5" };
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{strip}\" width=\"{:.1}\" height=\"8\" \
                 fill=\"{colour}\" opacity=\"{opacity}\"/>",
                x(one.begin),
                x(one.end) - x(one.begin)
            );
        }
        let legend = left + 240.0 * number as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{legend}\" y=\"36\" width=\"14\" height=\"10\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"46\">{}: {} read faults</text>",
            legend + 20.0,
            line.name,
            line.faults
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"{}\">Strips: its memory migrates, to the device (dark) and back \
         (light).</text>\n</svg>",
        bottom + 74.0
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &'static str, rates: &[(f64, f64)], moved: Move, faults: u64) -> Line {
        let samples = rates.iter().map(|&(at, rate)| Sample { at, rate }).collect();
        Line { name, samples, moves: vec![moved], faults, stall_ms: 12.0 }
    }

    fn lines() -> Vec<Line> {
        let there = Move { begin: 0.06, end: 0.09, to_device: true };
        let back = Move { begin: 0.06, end: 0.14, to_device: false };
        vec![
            line("faultless", &[(0.05, 400.0), (0.1, 380.0)], there, 0),
            line("ordinary", &[(0.05, 400.0), (0.1, 0.0), (0.15, 0.0)], back, 77),
        ]
    }

    #[test]
    fn text_shows_rates_and_phases() {
        let text = text(&lines());
        assert!(text.contains("faultless |██|") && text.contains("ordinary  |█  |"), "{text}");
        assert!(text.contains("| >|") && text.contains("| <<|"), "{text}");
        assert!(text.contains("77 read faults") && text.contains("50 ms a column"), "{text}");
    }

    #[test]
    fn columns_span_equal_times() {
        let moved = Move { begin: 0.0, end: 0.0, to_device: true };
        let late = line("late", &[(0.05, 100.0), (0.2, 300.0), (0.225, 60.0)], moved, 0);
        let rates: Vec<i64> = slices(&late, 0.1).iter().map(|rate| rate.round() as i64).collect();
        assert_eq!(rates, [200, 300, 60]);
    }

    #[test]
    fn long_runs_fit_into_a_terminal() {
        let moved = Move { begin: 4.0, end: 4.001, to_device: false };
        let rates: Vec<(f64, f64)> = (1..=160).map(|n| (f64::from(n) / 10.0, 200.0)).collect();
        let text = text(&[line("slow", &rates, moved, 0)]);
        assert!(text.contains("250 ms a column") && text.matches('█').count() == 64, "{text}");
        // A migration shorter than a sample is still marked.
        assert_eq!(text.lines().nth(3).map(|marks| marks.matches('<').count()), Some(1), "{text}");
        assert!(text.lines().skip(2).all(|row| row.chars().count() <= 80), "{text}");
    }

    #[test]
    fn ruler_counts_seconds() {
        assert_eq!(ruler(24, 0.1), "+0s-------+1s-------+2s-");
        assert_eq!(ruler(22, 0.1), "+0s-------+1s---------");
        assert_eq!(ruler(16, 0.25), "+0s-----+2s-----");
        assert_eq!(ruler(2, 0.1), "--");
    }

    #[test]
    fn empty_measurement_draws_nothing() {
        let empty = Line { samples: vec![], moves: vec![], ..lines().remove(0) };
        assert!(text(&[empty.clone()]).contains("||"));
        assert!(!svg(&[empty]).contains("NaN"));
    }

    #[test]
    fn svg_is_balanced() {
        let svg = svg(&lines());
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        assert_eq!(svg.matches("<polyline").count(), 2);
        // Background, and for each line its legend and one strip.
        assert_eq!(svg.matches("<rect").count(), 5);
        // tools/demo cuts the output between these two tags.
        assert!(svg.starts_with("<svg ") && svg.ends_with("\n</svg>\n"));
        assert_eq!(svg.matches("</svg>").count(), 1);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}
