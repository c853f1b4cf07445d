// SPDX-License-Identifier: GPL-2.0
//! The screen of `hmmctl top`.

use crate::picture;
use crate::problem::{
    Problem,
    Result, //
};
use crate::sample::{
    page_bytes,
    Between,
    Device,
    Mirror, //
};
use crate::stop::Stop;
use crate::table::bytes;
use crate::top::{
    bar,
    device_name,
    rate,
    rows, //
};
use ratatui::backend::{
    Backend,
    TestBackend, //
};
use ratatui::layout::{
    Constraint,
    Layout, //
};
use ratatui::style::{
    Color,
    Modifier,
    Style, //
};
use ratatui::text::{
    Line,
    Span, //
};
use ratatui::widgets::{
    Block,
    Row,
    Table, //
};
use ratatui::{
    Frame,
    Terminal, //
};
use std::io::{
    self,
    Read, //
};
use std::sync::mpsc::{
    channel,
    Receiver, //
};
use std::time::{
    Duration,
    Instant, //
};

/// Width of bars.
const BAR: usize = 24;

/// Columns and lines of a picture.
const PICTURE: (u16, u16) = (113, 14);

/// Colours of device memory and system memory in all views.
pub const DEVICE_COLOR: Color = Color::Green;
pub const SYSTEM_COLOR: Color = Color::Blue;

/// A coloured bar: device memory, system memory, nothing.
fn bar_line(own: u64, system: u64, whole: u64) -> Line<'static> {
    let bar = bar(&[(own, '#'), (system, '-')], whole, BAR);
    let spans =
        [('#', DEVICE_COLOR), ('-', SYSTEM_COLOR), ('.', Color::DarkGray)].map(|(char, color)| {
            let count = bar.chars().filter(|other| *other == char).count();
            let shown = if char == '.' { "░" } else { "█" };
            Span::styled(shown.repeat(count), Style::new().fg(color))
        });
    Line::from(spans.to_vec())
}

fn right(text: String) -> Line<'static> {
    Line::from(text).right_aligned()
}

fn header(names: &[&'static str], left: usize) -> Row<'static> {
    let cell = |(index, name): (usize, &&'static str)| {
        if index < left {
            Line::from(*name)
        } else {
            Line::from(*name).right_aligned()
        }
    };
    let cells = names.iter().enumerate().map(cell);
    Row::new(cells).style(Style::new().add_modifier(Modifier::BOLD))
}

fn mirrors(between: &Between) -> Table<'static> {
    let (rows, _) = rows(between);
    let row = |row: &crate::top::MirrorRow| {
        let Mirror {
            pid, comm, mirror, device, system_pages, device_pages, exclusive_pages, ..
        } = row.mirror;
        let own = *device_pages;
        let system = system_pages + exclusive_pages;
        let name = if row.mirror.alive { comm.clone() } else { "(gone)".to_string() };
        Row::new(vec![
            right(pid.to_string()),
            Line::from(name),
            right(mirror.to_string()),
            right(device_name(*device)),
            right(rate(row.faults)),
            right(format!("{:.1}%", row.stalled)),
            right(rate(row.migrations)),
            right(bytes(row.bytes)),
            bar_line(own, system, own + system),
            right(bytes(own as f64 * page_bytes())),
            right(bytes(system as f64 * page_bytes())),
        ])
    };
    let widths = [7, 13, 4, 4, 7, 7, 7, 10, BAR as u16, 9, 9].map(Constraint::Length);
    let names = [
        "PID",
        "NAME",
        "MIR",
        "DEV",
        "FAULT/s",
        "STALLED",
        "MIGR/s",
        "MOVED/s",
        "RESIDENCY",
        "DEVICE",
        "SYSTEM",
    ];
    let mut head: Vec<Line> = Vec::new();
    for (index, name) in names.into_iter().enumerate() {
        let line = Line::from(name);
        head.push(if [1, 8].contains(&index) { line } else { line.right_aligned() });
    }
    let head = Row::new(head).style(Style::new().add_modifier(Modifier::BOLD));
    Table::new(rows.iter().map(row).collect::<Vec<_>>(), widths)
        .header(head)
        .column_spacing(1)
        .block(Block::bordered().title(" processes "))
}

fn devices(between: &Between) -> Table<'static> {
    let (_, rows) = rows(between);
    let row = |row: &crate::top::DeviceRow| {
        let Device { device, kind, used, limit, .. } = row.device;
        Row::new(vec![
            Line::from(device.to_string()),
            Line::from(kind.clone()),
            bar_line(*used, 0, *limit),
            right(bytes(*used as f64 * page_bytes())),
            right(bytes(*limit as f64 * page_bytes())),
            right(rate(row.faults)),
            right(bytes(row.bytes)),
            right(rate(row.evicted)),
        ])
    };
    let widths = [8, 10, BAR as u16, 11, 11, 13, 11, 11].map(Constraint::Length);
    let names = ["DEVICE", "KIND", "MEMORY", "USED", "LIMIT", "CPU FAULT/s", "BACK/s", "EVICTED/s"];
    Table::new(rows.iter().map(row).collect::<Vec<_>>(), widths)
        .header(header(&names, 3))
        .column_spacing(0)
        .block(Block::bordered().title(" devices "))
}

/// Draws the screen.
pub fn draw(frame: &mut Frame, between: &Between) {
    let devices_high = between.now.devices.len() as u16 + 3;
    let parts = [
        Constraint::Length(1),
        Constraint::Min(4),
        Constraint::Length(devices_high),
        Constraint::Length(1),
    ];
    let [title, upper, lower, keys] = Layout::vertical(parts).areas(frame.area());
    let busiest = between.now.phases.keys().map(|name| (between.phase(name).ns, name)).max();
    let phase = match busiest {
        Some((ns, name)) if ns > 0 => {
            format!(", most time in {name}: {:.1} %", between.rate(ns) / 1e7)
        }
        _ => String::new(),
    };
    let number =
        |count: usize, name: &str| format!("{count} {name}{}", if count == 1 { "" } else { "s" });
    let mirrors_here = between.now.mirrors.len();
    let devices_here = between.now.devices.len();
    let summary = format!(
        "hmmctl top: {}, {}{phase}",
        number(mirrors_here, "mirror"),
        number(devices_here, "device")
    );
    frame
        .render_widget(Line::from(summary).style(Style::new().add_modifier(Modifier::BOLD)), title);
    frame.render_widget(mirrors(between), upper);
    frame.render_widget(devices(between), lower);
    let legend = Line::from(vec![
        Span::raw("q quit  space pause   "),
        Span::styled("█ device memory  ", Style::new().fg(DEVICE_COLOR)),
        Span::styled("█ system memory, mapped by the device", Style::new().fg(SYSTEM_COLOR)),
    ]);
    frame.render_widget(legend, keys);
}

/// The screen as a picture.
pub fn picture(between: &Between) -> io::Result<String> {
    let mut terminal = Terminal::new(TestBackend::new(PICTURE.0, PICTURE.1))?;
    terminal.draw(|frame| draw(frame, between))?;
    Ok(picture::svg(terminal.backend().buffer()))
}

/// Action of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Key {
    Quit,
    Pause,
}

/// Action of a byte from the terminal, which is in raw mode, so that Ctrl-C is a byte, too.
fn key(byte: u8) -> Option<Key> {
    match byte {
        b'q' | b'Q' | 3 => Some(Key::Quit),
        b' ' => Some(Key::Pause),
        _ => None,
    }
}

/// Receives the keys. In a thread, because not every kernel has the sockets that event libraries
/// need.
fn keys() -> Receiver<Key> {
    let (send, keys) = channel();
    std::thread::spawn(move || {
        let mut byte = [0];
        while io::stdin().lock().read(&mut byte).is_ok_and(|read| read == 1) {
            if key(byte[0]).is_some_and(|key| send.send(key).is_err()) {
                break;
            }
        }
    });
    keys
}

fn show<B: Backend>(
    terminal: &mut Terminal<B>,
    stop: &Stop,
    interval: Duration,
    mut next: impl FnMut() -> Result<Between>,
) -> Result<()> {
    let keys = keys();
    let mut between = next()?;
    let mut paused = false;
    let mut due = Instant::now() + interval;
    while !stop.now() {
        // Drawing also detects a change of the terminal's size.
        terminal.draw(|frame| draw(frame, &between)).map_err(Problem::output)?;
        while Instant::now() < due && !stop.now() {
            match keys.try_recv() {
                Ok(Key::Quit) => return Ok(()),
                Ok(Key::Pause) => paused = !paused,
                Err(_) => stop.pause(),
            }
        }
        due += interval;
        if !paused {
            between = next()?;
        }
    }
    Ok(())
}

/// Shows the screen on the terminal until the user quits.
pub fn live(interval: Duration, next: impl FnMut() -> Result<Between>) -> Result<()> {
    // Catch signals, so that the terminal is restored.
    let stop = Stop::new()?;
    let mut terminal = ratatui::try_init().map_err(Problem::output)?;
    let done = show(&mut terminal, &stop, interval, next);
    ratatui::restore();
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::example;

    fn screen() -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(PICTURE.0, PICTURE.1)).unwrap();
        terminal.draw(|frame| draw(frame, &example())).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..PICTURE.0).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..PICTURE.1).map(line).collect()
    }

    #[test]
    fn screen_shows_processes_and_devices() {
        let lines = screen();
        assert!(
            lines[0].starts_with("hmmctl top: 2 mirrors, 2 devices, most time in copy: 25.0 %"),
            "{}",
            lines[0]
        );
        let row = lines.iter().find(|line| line.contains("gpu-app")).unwrap();
        for word in ["812", "10.0", "25.0%", "1.0 MiB", "1.2 MiB", "400.0 KiB"] {
            assert!(row.contains(word), "no {word} in {row}");
        }
        assert_eq!(row.matches('█').count(), BAR);
        let device = lines.iter().find(|line| line.contains("private")).unwrap();
        assert!(device.contains("8.0 GiB") && device.contains('░'), "{device}");
        assert!(lines[PICTURE.1 as usize - 1].contains("q quit"));
    }

    #[test]
    fn svg_shows_the_same_as_the_screen() {
        let svg = picture(&example()).unwrap();
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        for word in ["gpu-app", "RESIDENCY", "CPU FAULT/s"] {
            assert!(svg.contains(word), "no {word}");
        }
    }

    #[test]
    fn keys_are_understood() {
        assert_eq!(
            [key(b'q'), key(3), key(b' ')],
            [Some(Key::Quit), Some(Key::Quit), Some(Key::Pause)]
        );
        // The first bytes of the arrow keys.
        assert_eq!([key(27), key(b'[')], [None, None]);
    }
}
