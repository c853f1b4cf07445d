// SPDX-License-Identifier: GPL-2.0
//! What an engine reads per time slice while its memory migrates: faultless
//! beside the ordinary way.

use anyhow::{ensure, Context, Result};
use hmm::engine::Way;
use hmm::{Command, Device, EngineOp, Mapping, Setting};
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// MiB that the engine reads, in 4 KiB pages.
const MIB: usize = 8;
/// Of each copy, in microseconds: a migration of all takes some time.
const COPY_DELAY_US: u64 = 50;
/// Length of a slice.
const SLICE: Duration = Duration::from_millis(50);
/// Time without a migration before and after each.
const STILL: Duration = Duration::from_millis(250);

/// What memory did during a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It stayed.
    Still,
    /// It went to the device.
    ToDevice,
    /// It came back.
    ToSystem,
}

/// One slice.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// End of the slice, in seconds.
    pub at: f64,
    /// What the engine read, in MiB per second.
    pub rate: f64,
    /// At the end of the slice.
    pub phase: Phase,
}

/// One way to migrate.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it is called.
    pub name: &'static str,
    pub samples: Vec<Sample>,
    /// Reads that faulted.
    pub faults: u64,
    /// Time that reads waited, in ms.
    pub stall_ms: f64,
}

fn phase(number: u32) -> Phase {
    match number {
        1 => Phase::ToDevice,
        2 => Phase::ToSystem,
        _ => Phase::Still,
    }
}

/// Measures one way: two trips there and back.
pub fn measure(device: &Device, faultless: bool) -> Result<Line> {
    let old = device.set(Setting::CopyDelay, COPY_DELAY_US * 1000).context("copy delay")?;
    let map = Mapping::anon_aligned(MIB / 2)?;
    map.fill(1);
    let read = Command::new(EngineOp::Read, map.addr(), map.len());
    let first = device.run(read).context("first pass")?;
    ensure!(first.error.is_none(), "the first pass failed: {:?}", first.error);
    let job = device.submit(read.rounds(0)).context("reader")?;
    let before = device.counters()?;
    let (stop, now) = (AtomicBool::new(false), AtomicU32::new(0));
    let samples = std::thread::scope(|scope| -> Result<Vec<Sample>> {
        let sampler = scope.spawn(|| -> Result<Vec<Sample>> {
            let (begin, mut last) = (Instant::now(), (Instant::now(), before.bytes_read));
            let mut samples = Vec::new();
            while !stop.load(Relaxed) {
                std::thread::sleep(SLICE);
                let (at, bytes) = (Instant::now(), device.counters()?.bytes_read);
                let seconds = (at - last.0).as_secs_f64();
                let rate = (bytes - last.1) as f64 / f64::from(1 << 20) / seconds;
                let phase = phase(now.load(Relaxed));
                samples.push(Sample { at: (at - begin).as_secs_f64(), rate, phase });
                last = (at, bytes);
            }
            Ok(samples)
        });
        let moves = (|| -> Result<()> {
            for _ in 0..2 {
                for (number, way) in [(1, Way::ToDevice), (2, Way::ToSystem)] {
                    std::thread::sleep(STILL);
                    now.store(number, Relaxed);
                    device.migrate(map.addr(), map.pages(), way.faultless(faultless))?;
                    now.store(0, Relaxed);
                }
            }
            std::thread::sleep(STILL);
            Ok(())
        })();
        stop.store(true, Relaxed);
        let samples = sampler.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        moves.map(|()| samples)
    })?;
    let after = device.counters()?;
    let ended = job.finish().context("end of the reader")?;
    ensure!(ended.error.is_none(), "the reader failed: {:?}", ended.error);
    device.set(Setting::CopyDelay, old).context("copy delay")?;
    Ok(Line {
        name: if faultless { "faultless" } else { "ordinary" },
        samples,
        faults: after.engine_faults_read - before.engine_faults_read,
        stall_ms: (after.stall_ns_read - before.stall_ns_read) as f64 / 1e6,
    })
}

fn highest(lines: &[Line]) -> f64 {
    let rates = lines.iter().flat_map(|line| &line.samples).map(|sample| sample.rate);
    rates.fold(1.0, f64::max)
}

/// Both as text: a character per slice, higher is faster, and what moved below.
pub fn text(lines: &[Line]) -> String {
    const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let top = highest(lines);
    let mut text = format!(
        "What an engine reads while its memory migrates ({} ms a column, full height {top:.0} MiB/s;\n\
         > to the device, < back):\n",
        SLICE.as_millis()
    );
    for line in lines {
        let level = |sample: &Sample| {
            let steps = (LEVELS.len() - 1) as f64;
            LEVELS[((sample.rate / top * steps).round() as usize).min(LEVELS.len() - 1)]
        };
        let mark = |sample: &Sample| match sample.phase {
            Phase::Still => ' ',
            Phase::ToDevice => '>',
            Phase::ToSystem => '<',
        };
        let bars: String = line.samples.iter().map(level).collect();
        let marks: String = line.samples.iter().map(mark).collect();
        let _ = writeln!(text, "  {:<10}|{bars}|", line.name);
        let _ = writeln!(text, "  {:<10}|{marks}|", "");
        let (faults, ms) = (line.faults, line.stall_ms);
        let _ = writeln!(text, "  {:<10} {faults} read faults, reads waited {ms:.1} ms", "");
    }
    text
}

/// Width and height of the area of the curves, and where it begins.
const AREA: (f64, f64) = (720.0, 240.0);
const ORIGIN: (f64, f64) = (80.0, 60.0);
/// Colours that differ also for who sees no red or green.
const COLOURS: [&str; 2] = ["#0072b2", "#d55e00"];

/// Both as a picture.
pub fn svg(lines: &[Line]) -> String {
    let (width, height) = AREA;
    let (left, top) = ORIGIN;
    let bottom = top + height;
    let highest = (highest(lines) / 100.0).ceil() * 100.0;
    let times = lines.iter().flat_map(|line| line.samples.last()).map(|sample| sample.at);
    let longest = times.fold(0.1, f64::max);
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
    for second in 0..=longest as u32 {
        let at = x(f64::from(second));
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
        // A strip below the axis: when memory moved.
        let strip = bottom + 26.0 + 12.0 * number as f64;
        let mut last = 0.0;
        for sample in &line.samples {
            if sample.phase != Phase::Still {
                let opacity = if sample.phase == Phase::ToDevice { "1" } else { "0.5" };
                let _ = writeln!(
                    svg,
                    "<rect x=\"{:.1}\" y=\"{strip}\" width=\"{:.1}\" height=\"8\" \
                     fill=\"{colour}\" opacity=\"{opacity}\"/>",
                    x(last),
                    x(sample.at) - x(last)
                );
            }
            last = sample.at;
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

    fn lines() -> Vec<Line> {
        let sample = |at, rate, phase| Sample { at, rate, phase };
        vec![
            Line {
                name: "faultless",
                samples: vec![
                    sample(0.5, 400.0, Phase::Still),
                    sample(1.0, 380.0, Phase::ToDevice),
                ],
                faults: 0,
                stall_ms: 0.0,
            },
            Line {
                name: "ordinary",
                samples: vec![sample(0.5, 400.0, Phase::Still), sample(1.0, 0.0, Phase::ToSystem)],
                faults: 77,
                stall_ms: 12.0,
            },
        ]
    }

    #[test]
    fn text_shows_rates_and_phases() {
        let text = text(&lines());
        assert!(text.contains("faultless |██|") && text.contains("ordinary  |█ |"), "{text}");
        assert!(text.contains("| >|") && text.contains("| <|"), "{text}");
        assert!(text.contains("77 read faults"), "{text}");
    }

    #[test]
    fn svg_is_balanced() {
        let svg = svg(&lines());
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}
