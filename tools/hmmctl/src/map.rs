// SPDX-License-Identifier: GPL-2.0
//! `hmmctl map`: location of the pages of a process.

use crate::picture::escape;
use crate::places::{
    self,
    page_size,
    Place,
    Region, //
};
use crate::problem::{
    Problem,
    Result, //
};
use crate::sample::{
    Mirror,
    Sample, //
};
use crate::{
    source,
    table, //
};
use serde_json::{
    json,
    Value, //
};
use std::fmt::Write as _;
use std::io::{
    IsTerminal,
    Write as _, //
};
use std::path::PathBuf;

/// Maximum number of lines of a picture for one mapping.
const LINES: u64 = 8;

/// Arguments of `hmmctl map`.
#[derive(clap::Args)]
pub struct Args {
    /// The process
    pid: u32,
    /// Write a picture to this file, too
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also private memory without a device entry
    #[arg(long)]
    all: bool,
    /// Only pages of this device
    #[arg(long, short, value_name = "NUMBER")]
    device: Option<u32>,
    /// Blocks in a line
    #[arg(long, default_value_t = 64, value_name = "BLOCKS", value_parser = clap::value_parser!(u64).range(8..=512))]
    width: u64,
    /// Pages of a block; otherwise as many as make the picture small
    #[arg(long, value_name = "PAGES", value_parser = clap::value_parser!(u64).range(1..))]
    block: Option<u64>,
    /// Colours: always, never, or on a terminal
    #[arg(long, default_value = "auto", value_parser = ["always", "never", "auto"])]
    color: String,
}

/// A process and the location of its pages.
struct Map {
    pid: u32,
    comm: String,
    mirrors: Vec<Mirror>,
    regions: Vec<Region>,
}

impl Map {
    fn take(args: &Args) -> Result<Map> {
        let sample = Sample::take()?;
        if let Some(device) = args.device {
            sample.has_device(device)?;
        }
        sample.has_process(args.pid)?;
        let mirrors = sample.only(Some(args.pid), args.device).mirrors;
        let alive: Vec<&Mirror> = mirrors.iter().filter(|mirror| mirror.alive).collect();
        if alive.is_empty() {
            let pid = args.pid;
            let exists = std::path::Path::new(&format!("/proc/{pid}")).is_dir();
            return Err(if exists {
                Problem::NoMirrorOf(pid, Vec::new())
            } else {
                Problem::NoProcess(pid)
            });
        }
        let regions = places::regions(args.pid, &alive, args.all)?;
        Ok(Map { pid: args.pid, comm: source::name_of(args.pid), mirrors, regions })
    }

    fn total(&self, place: Place) -> u64 {
        self.regions.iter().map(|region| region.count(place)).sum()
    }
}

/// Number of pages of a block, so that `pages` need few lines of `width` blocks.
fn block_of(pages: u64, width: u64) -> u64 {
    pages.div_ceil(width * LINES).next_power_of_two()
}

fn hex(addr: u64) -> String {
    format!("{addr:#x}")
}

fn name(region: &Region) -> &str {
    match region.vma.name.as_str() {
        "" => "anonymous",
        name => name,
    }
}

fn counts(count: impl Fn(Place) -> u64) -> Value {
    let of = |(place, ..): (Place, char, &str)| {
        let name = json!(place).as_str().unwrap_or_default().to_string();
        (name, json!(count(place)))
    };
    Value::Object(Place::ALL.into_iter().map(of).collect())
}

fn object(map: &Map) -> Value {
    let region = |region: &Region| {
        let runs = region.runs.iter().map(|run| {
            let mut object = json!(run);
            object["start"] = json!(hex(run.start));
            object
        });
        json!({
            "start": hex(region.vma.start),
            "end": hex(region.vma.end),
            "rights": region.vma.rights,
            "name": region.vma.name,
            "pages": (region.vma.end - region.vma.start) / page_size(),
            "counts": counts(|place| region.count(place)),
            "runs": runs.collect::<Vec<_>>(),
        })
    };
    json!({
        "pid": map.pid,
        "comm": map.comm,
        "page_size": page_size(),
        "mirrors": map.mirrors,
        "counts": counts(|place| map.total(place)),
        "regions": map.regions.iter().map(region).collect::<Vec<_>>(),
    })
}

/// Escape sequence of a place's colour.
fn ansi(place: Place) -> &'static str {
    match place {
        Place::Device => "\x1b[30;42m",
        Place::System => "\x1b[37;44m",
        Place::Exclusive => "\x1b[30;43m",
        Place::Cpu => "\x1b[30;46m",
        Place::Elsewhere => "\x1b[37;45m",
        Place::Nothing => "\x1b[90m",
    }
}

/// Colour of a place in pictures.
fn fill(place: Place) -> &'static str {
    match place {
        Place::Device => "#6bbf59",
        Place::System => "#5b8bd0",
        Place::Exclusive => "#d7a53a",
        Place::Cpu => "#9bb7c9",
        Place::Elsewhere => "#b877c9",
        Place::Nothing => "#343a45",
    }
}

fn size(pages: u64) -> String {
    table::bytes((pages * page_size()) as f64)
}

fn summary(count: impl Fn(Place) -> u64) -> String {
    let names = ["device", "system", "exclusive", "CPU only", "elsewhere"];
    let shown = Place::ALL.iter().zip(names).filter(|((place, ..), _)| count(*place) != 0);
    let part = |((place, ..), name): (&(Place, char, &str), &str)| {
        format!("{name} {}", size(count(*place)))
    };
    shown.map(part).collect::<Vec<_>>().join(", ")
}

fn devices(map: &Map) -> String {
    let mut numbers: Vec<String> =
        map.mirrors.iter().map(|mirror| crate::top::device_name(mirror.device)).collect();
    numbers.dedup();
    numbers.join(", ")
}

fn title(map: &Map) -> String {
    let what = match summary(|place| map.total(place)) {
        empty if empty.is_empty() => "nothing is mapped".to_string(),
        what => what,
    };
    format!("process {} ({}), device {}: {what}", map.pid, map.comm, devices(map))
}

/// The blocks of a region, line by line.
fn lines(region: &Region, width: u64, block: Option<u64>) -> (u64, Vec<Vec<Place>>) {
    let pages = (region.vma.end - region.vma.start) / page_size();
    let block = block.unwrap_or_else(|| block_of(pages, width));
    let at = |index: u64| {
        let start = region.vma.start + index * block * page_size();
        region.at(start, (start + block * page_size()).min(region.vma.end))
    };
    let blocks: Vec<Place> = (0..pages.div_ceil(block)).map(at).collect();
    (block, blocks.chunks(width as usize).map(<[_]>::to_vec).collect())
}

fn text(map: &Map, args: &Args, color: bool) -> String {
    let mut text = format!("{}\n", title(map));
    for region in &map.regions {
        let (block, lines) = lines(region, args.width, args.block);
        // Writing to a String never fails.
        let _ = writeln!(
            text,
            "\n{}-{} {}, {} ({} a block)",
            hex(region.vma.start),
            hex(region.vma.end),
            name(region),
            summary(|place| region.count(place)),
            size(block)
        );
        for line in lines {
            text.push_str("  ");
            for place in line {
                if color {
                    text.push_str(&format!("{}{}\x1b[0m", ansi(place), place.char()))
                } else {
                    text.push(place.char())
                }
            }
            text.push('\n');
        }
    }
    text.push('\n');
    for (place, char, meaning) in Place::ALL {
        if map.total(place) != 0 {
            let _ = writeln!(text, "  {char} {meaning}");
        }
    }
    text
}

/// Draws the picture. Each element has a count: `data-pages`, by region and location.
fn svg(map: &Map, args: &Args) -> String {
    const BLOCK: u64 = 10;
    const LINE: u64 = 14;
    let mut body = String::new();
    let mut y = 30;
    let label = |body: &mut String, x: u64, y: u64, text: &str| {
        let _ = writeln!(body, "<text x=\"{x}\" y=\"{y}\">{}</text>", escape(text));
    };
    label(&mut body, 10, 20, &title(map));
    for region in &map.regions {
        let (block, lines) = lines(region, args.width, args.block);
        y += 12;
        // Without addresses, which differ in each run.
        let head = format!(
            "{}, {} in blocks of {}",
            name(region),
            size((region.vma.end - region.vma.start) / page_size()),
            size(block)
        );
        label(&mut body, 10, y, &format!("{head}: {}", summary(|place| region.count(place))));
        body.push_str("<g class=\"region\">\n");
        y += 6;
        for line in lines {
            let mut x = 0;
            for part in line.chunk_by(|a, b| a == b) {
                let blocks = part.len() as u64;
                let _ = writeln!(
                    body,
                    "<rect class=\"{}\" x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{BLOCK}\" fill=\"{}\"/>",
                    json!(part[0]).as_str().unwrap_or_default(),
                    10 + x * BLOCK,
                    blocks * BLOCK - 1,
                    fill(part[0])
                );
                x += blocks;
            }
            y += BLOCK + 1;
        }
        body.push_str("</g>\n");
        y += 10;
    }
    let mut x = 10;
    for (place, _, meaning) in Place::ALL {
        let pages = map.total(place);
        if pages != 0 && place != Place::Nothing {
            let name = json!(place);
            let name = name.as_str().unwrap_or_default();
            let _ = writeln!(body, "<rect x=\"{x}\" y=\"{y}\" width=\"10\" height=\"10\" fill=\"{}\" data-place=\"{name}\" data-pages=\"{pages}\"/>", fill(place));
            label(&mut body, x + 15, y + 10, meaning);
            x += 30 + 7 * meaning.len() as u64;
        }
    }
    y += LINE + 8;
    let width = (args.width * BLOCK).max(x - 10) + 20;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {y}\" font-family=\"DejaVu Sans Mono, monospace\" \
         font-size=\"11\" fill=\"#d8dee9\">\n<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#1e222a\"/>\n{body}</svg>\n"
    )
}

/// Returns whether the text has colours, on a terminal or elsewhere.
fn is_colored(args: &Args, terminal: bool) -> bool {
    args.color == "always" || (args.color == "auto" && terminal)
}

/// Runs `hmmctl map`.
pub fn run(args: &Args) -> Result<()> {
    let map = Map::take(args)?;
    if let Some(file) = &args.svg {
        std::fs::write(file, svg(&map, args)).map_err(|error| Problem::io("write", file, error))?;
    }
    let out = std::io::stdout();
    let text = if args.json {
        format!("{}\n", object(&map))
    } else {
        text(&map, args, is_colored(args, out.is_terminal()))
    };
    out.lock().write_all(text.as_bytes()).map_err(Problem::output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::tests::run;
    use crate::places::Vma;

    #[test]
    fn only_terminals_have_colours() {
        let (map, mut args) = example();
        let has_escapes =
            |args: &Args, terminal| text(&map, args, is_colored(args, terminal)).contains('\x1b');
        assert!(!has_escapes(&args, false) && has_escapes(&args, true));
        args.color = "always".into();
        assert!(has_escapes(&args, false));
        args.color = "never".into();
        assert!(!has_escapes(&args, true));
    }

    fn example() -> (Map, Args) {
        let vma =
            Vma { start: 0, end: 96 * page_size(), rights: "rw-p".into(), name: "[heap]".into() };
        let runs =
            vec![run(0, 32, Place::Device), run(32, 16, Place::System), run(64, 4, Place::Cpu)];
        let sample = crate::sample::tests::example().now;
        let map = Map {
            pid: 812,
            comm: "a<b".into(),
            mirrors: vec![sample.mirrors[0].clone()],
            regions: vec![Region { vma, runs }],
        };
        let args = Args {
            pid: 812,
            svg: None,
            json: false,
            all: false,
            device: None,
            width: 16,
            block: Some(2),
            color: "auto".into(),
        };
        (map, args)
    }

    #[test]
    fn text_shows_the_blocks() {
        let (map, args) = example();
        let text = text(&map, &args, false);
        let pictures: Vec<&str> = text
            .lines()
            .filter(|line| {
                line.starts_with("  ") && !line.contains(' '.to_string().repeat(3).as_str())
            })
            .collect();
        assert_eq!(
            pictures[..3],
            ["  dddddddddddddddd", "  ssssssss........", "  cc.............."],
            "{text}"
        );
        assert!(text.starts_with("process 812 (a<b), device 0: device 128.0 KiB, system 64.0 KiB, CPU only 16.0 KiB\n"), "{text}");
        assert!(text.contains("[heap]") && text.contains("8.0 KiB a block"), "{text}");
        assert!(super::text(&map, &args, true).contains("\x1b[30;42md\x1b[0m"));
    }

    #[test]
    fn objects_have_counts_and_runs() {
        let object = object(&example().0);
        assert_eq!(object["counts"]["device"], 32);
        assert_eq!(object["counts"]["nothing"], 44);
        assert_eq!(object["regions"][0]["runs"][1]["start"], "0x20000");
        assert_eq!(object["regions"][0]["runs"][1]["place"], "system");
        assert_eq!(object["mirrors"][0]["device"], 0);
    }

    #[test]
    fn svg_shows_the_counts() {
        let (map, args) = example();
        let svg = svg(&map, &args);
        assert!(svg.contains("data-place=\"device\" data-pages=\"32\""), "{svg}");
        assert_eq!(svg.matches("class=\"device\"").count(), 1);
        assert!(svg.contains("a&lt;b"));
    }

    #[test]
    fn blocks_grow_with_the_mapping() {
        assert_eq!(
            [block_of(1, 64), block_of(512, 64), block_of(513, 64), block_of(1 << 20, 64)],
            [1, 1, 2, 2048]
        );
    }
}
