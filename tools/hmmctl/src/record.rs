// SPDX-License-Identifier: GPL-2.0
//! `hmmctl record`: records samples and events for a time, or while a command runs.
//!
//! The file has one JSON object in each line: a head, then samples and events in the order in which
//! they were read.

use crate::{
    events::{
        self,
        Known, //
    },
    instance::Instance,
    places::page_size,
    problem::{
        Problem,
        Result, //
    },
    sample::Sample,
    stop::Stop, //
};
use hmm::tracing::Event;
use serde::{
    Deserialize,
    Serialize, //
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{
        BufRead,
        BufReader,
        BufWriter,
        Write, //
    },
    path::{
        Path,
        PathBuf, //
    },
    process::{
        Child,
        Command, //
    },
    time::{
        Duration,
        Instant, //
    }, //
};

/// Version of the file.
const VERSION: u32 = 1;

/// Arguments of `hmmctl record`.
#[derive(clap::Args)]
pub struct Args {
    /// The file
    #[arg(long, short, default_value = "hmmctl.rec", value_name = "FILE")]
    output: PathBuf,
    /// So many seconds; otherwise until a signal, or the command's end
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Milliseconds from one sample to the next
    #[arg(long, default_value_t = 100, value_name = "MS", value_parser = clap::value_parser!(u64).range(5..))]
    interval: u64,
    /// Print the head of the record as JSON when it is done
    #[arg(long)]
    json: bool,
    /// A command that is run, and how long it runs
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Parameters of a record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Version of the file.
    pub hmmctl: u32,
    /// The command that was run.
    pub command: Vec<String>,
    /// Milliseconds from one sample to the next.
    pub interval_ms: u64,
    /// Version of the kernel.
    pub kernel: String,
    /// Bytes of a page of the machine. Earlier versions did not record it, and ran with 4 KiB.
    #[serde(default = "small_page")]
    pub page_size: u64,
}

fn small_page() -> u64 {
    4096
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// The first one.
    Head(Head),
    /// Contents of the files in debugfs.
    Sample(Sample),
    /// Event of a tracepoint.
    Event(Value),
    /// The last line.
    End {
        /// Number of lost events.
        lost: u64,
    },
}

/// A record.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Parameters.
    pub head: Head,
    /// Samples in order.
    pub samples: Vec<Sample>,
    /// Events in order.
    pub events: Vec<Value>,
    /// Number of lost events.
    pub lost: u64,
}

impl Record {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Record> {
        let file = File::open(path).map_err(|error| Problem::io("open", path, error))?;
        let mut record = Record::default();
        for (index, line) in BufReader::new(file).lines().enumerate() {
            let line = line.map_err(|error| Problem::io("read", path, error))?;
            let name = path.display();
            match serde_json::from_str(&line) {
                Ok(Line::Head(head)) if head.hmmctl == VERSION => record.head = head,
                Ok(Line::Head(head)) => {
                    let version = head.hmmctl;
                    return Err(Problem::Format(format!(
                        "{name} is of version {version}, this hmmctl knows {VERSION}"
                    )));
                }
                Ok(Line::Sample(sample)) => record.samples.push(sample),
                Ok(Line::Event(event)) => record.events.push(event),
                Ok(Line::End { lost }) => record.lost = lost,
                Err(error) => {
                    let number = index + 1;
                    return Err(Problem::Format(format!(
                        "{name} is no record of hmmctl: line {number}: {error}"
                    )));
                }
            }
        }
        if record.head.hmmctl == 0 {
            return Err(Problem::Format(format!(
                "{} is no record of hmmctl: it is empty",
                path.display()
            )));
        }
        Ok(record)
    }

    /// Number of events by name.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for event in &self.events {
            *counts.entry(event["event"].as_str().unwrap_or_default().to_string()).or_default() +=
                1;
        }
        counts
    }
}

struct Writer {
    path: PathBuf,
    out: BufWriter<File>,
    samples: u64,
    events: u64,
}

impl Writer {
    fn write(&mut self, line: &Line) -> Result<()> {
        let text =
            serde_json::to_string(line).map_err(|error| Problem::Format(error.to_string()))?;
        writeln!(self.out, "{text}").map_err(|error| Problem::io("write", &self.path, error))
    }

    fn sample(&mut self) -> Result<()> {
        self.samples += 1;
        self.write(&Line::Sample(Sample::take()?))
    }

    /// Writes all available events. Returns whether there was any.
    fn events(&mut self, instance: &mut Instance, known: &mut Known) -> Result<bool> {
        instance.read(|line| match Event::parse(line) {
            Some(event) => {
                self.events += 1;
                self.write(&Line::Event(events::object(&event, known)))
            }
            None => Ok(()),
        })
    }
}

/// Whether the child has ended, and whether it succeeded.
fn ended(child: &mut Option<Child>) -> Result<Option<bool>> {
    let Some(child) = child else {
        return Ok(None);
    };
    let status = child.try_wait();
    let status =
        status.map_err(|error| Problem::Io { what: "wait for the command".to_string(), error })?;
    Ok(status.map(|status| status.success()))
}

/// Runs `hmmctl record`.
pub fn run(args: &Args) -> Result<()> {
    let mut known = Known::now()?;
    let mut stop = Stop::new()?;
    let file =
        File::create(&args.output).map_err(|error| Problem::io("make", &args.output, error))?;
    let mut writer =
        Writer { path: args.output.clone(), out: BufWriter::new(file), samples: 0, events: 0 };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let head = Head {
        hmmctl: VERSION,
        command: args.command.clone(),
        interval_ms: args.interval,
        kernel: kernel.trim().to_string(),
        page_size: page_size(),
    };
    writer.write(&Line::Head(head.clone()))?;
    let mut instance = Instance::new(&[], 8192)?;
    writer.sample()?;
    // Flush, so that a reader of the file can see that recording has begun.
    writer.out.flush().map_err(|error| Problem::io("write", &args.output, error))?;
    let mut child = match args.command.split_first() {
        Some((program, rest)) => {
            let child = Command::new(program).args(rest).spawn();
            Some(child.map_err(|error| Problem::Io { what: format!("run {program}"), error })?)
        }
        None => None,
    };
    stop.after(args.duration);
    let mut succeeded = None;
    let mut next = Instant::now();
    while !stop.now() && succeeded.is_none() {
        next += Duration::from_millis(args.interval);
        while Instant::now() < next && !stop.now() && succeeded.is_none() {
            if !writer.events(&mut instance, &mut known)? {
                std::thread::sleep(Duration::from_millis(args.interval.min(10)));
            }
            succeeded = ended(&mut child)?;
        }
        writer.sample()?;
    }
    instance.stop();
    while writer.events(&mut instance, &mut known)? {}
    let lost = instance.lost();
    writer.write(&Line::End { lost })?;
    writer.out.flush().map_err(|error| Problem::io("write", &args.output, error))?;
    let samples = writer.samples;
    let events = writer.events;
    if args.json {
        let text = serde_json::json!({
            "file": args.output, "samples": samples, "events": events, "lost": lost, "head": head,
        });
        println!("{text}");
    } else {
        eprintln!("hmmctl: {samples} samples and {events} events in {}", args.output.display());
    }
    if lost != 0 {
        eprintln!("hmmctl: {lost} events were lost");
    }
    match (child, succeeded) {
        (Some(_), Some(false)) => Err(Problem::Command("has failed".to_string())),
        (Some(mut child), None) => {
            // The time is over, but the child is still running.
            let _ = child.kill();
            let _ = child.wait();
            Err(Problem::Command("was ended, because the time was over".to_string()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A record of some moments.
    pub fn example() -> Record {
        let between = crate::sample::tests::example();
        let event =
            |rest: &str| events::object(&events::tests::event(rest), &mut events::tests::known());
        Record {
            head: Head {
                hmmctl: VERSION,
                command: vec!["a<b".into()],
                interval_ms: 100,
                kernel: "7.2".into(),
                page_size: page_size(),
            },
            samples: vec![between.before, between.now],
            events: vec![
                event("device_fault: pid=812 mirror=3 start=0x10000 pages=1 access=write result=0"),
                event("device_fault: pid=812 mirror=3 start=0x20000 pages=1 access=read result=0"),
                event("evict: device=1 need=room moved=512 left=0"),
            ],
            lost: 0,
        }
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let path = std::env::temp_dir().join(format!("hmmctl-test-{}.rec", std::process::id()));
        let record = example();
        let mut writer = Writer {
            path: path.clone(),
            out: BufWriter::new(File::create(&path).unwrap()),
            samples: 0,
            events: 0,
        };
        writer.write(&Line::Head(record.head.clone())).unwrap();
        record
            .samples
            .iter()
            .for_each(|sample| writer.write(&Line::Sample(sample.clone())).unwrap());
        record.events.iter().for_each(|event| writer.write(&Line::Event(event.clone())).unwrap());
        writer.write(&Line::End { lost: 7 }).unwrap();
        writer.out.flush().unwrap();
        let read = Record::read(&path).unwrap();
        assert_eq!(
            (read.head, read.samples, read.events, read.lost),
            (record.head, record.samples, record.events, 7)
        );
        std::fs::write(&path, "{}\n").unwrap();
        assert!(Record::read(&path).unwrap_err().to_string().contains("line 1"));
        std::fs::write(&path, "").unwrap();
        assert!(Record::read(&path).unwrap_err().to_string().contains("empty"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Record::read(&path).unwrap_err().status(), 1);
    }

    #[test]
    fn events_are_counted_by_tracepoint() {
        let counts = example().counts();
        assert_eq!((counts["device_fault"], counts["evict"]), (2, 1));
        let mut known = events::tests::known();
        let each = events::tests::one_of_each();
        let events = each.iter().map(|event| events::object(event, &mut known)).collect();
        let counts = Record { events, ..example() }.counts();
        let once: BTreeMap<String, u64> =
            events::NAMES.iter().map(|name| (name.to_string(), 1)).collect();
        assert_eq!(counts, once);
    }
}
