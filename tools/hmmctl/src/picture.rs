// SPDX-License-Identifier: GPL-2.0
//! Contents of a terminal as an SVG picture.

use ratatui::buffer::Buffer;
use ratatui::style::{
    Color,
    Modifier, //
};
use std::fmt::Write;

/// Size of a character in pixels.
const WIDTH: f64 = 7.8;
const HEIGHT: f64 = 17.0;

/// Escapes text for XML.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML does not allow control characters.
            char if char.is_control() => escaped.push('?'),
            char => escaped.push(char),
        }
    }
    escaped
}

/// A colour as in CSS.
fn color(color: Color) -> &'static str {
    match color {
        Color::Green => "#6bbf59",
        Color::Blue => "#5b8bd0",
        Color::Yellow => "#d7a53a",
        Color::Magenta => "#b877c9",
        Color::DarkGray => "#555b66",
        _ => "#d8dee9",
    }
}

/// Draws the picture: text in runs of one style, blocks as rectangles.
pub fn svg(buffer: &Buffer) -> String {
    let area = buffer.area;
    let (width, height) =
        (f64::from(area.width) * WIDTH + 20.0, f64::from(area.height) * HEIGHT + 20.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"DejaVu Sans Mono, monospace\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#1e222a\"/>\n"
    );
    for y in 0..area.height {
        let mut x = 0;
        while x < area.width {
            let first = &buffer[(x, y)];
            let is_block = |symbol: &str| symbol == "█" || symbol == "░";
            let same = |other: &ratatui::buffer::Cell| {
                (other.fg, other.modifier) == (first.fg, first.modifier)
                    && is_block(other.symbol()) == is_block(first.symbol())
                    && (!is_block(first.symbol()) || other.symbol() == first.symbol())
            };
            let count = (x..area.width).take_while(|x| same(&buffer[(*x, y)])).count() as u16;
            let text: String = (x..x + count).map(|x| buffer[(x, y)].symbol()).collect();
            let left = 10.0 + f64::from(x) * WIDTH;
            let top = 10.0 + f64::from(y) * HEIGHT;
            let long = f64::from(count) * WIDTH;
            x += count;
            if text.trim().is_empty() {
                continue;
            }
            // Writing to a String never fails.
            let _ = if is_block(first.symbol()) {
                let opacity = if first.symbol() == "░" { "0.5" } else { "1" };
                writeln!(
                    svg,
                    "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{long:.1}\" height=\"{:.1}\" fill=\"{}\" opacity=\"{opacity}\"/>",
                    top + 3.0,
                    HEIGHT - 5.0,
                    color(first.fg)
                )
            } else {
                let bold = if first.modifier.contains(Modifier::BOLD) {
                    " font-weight=\"bold\""
                } else {
                    ""
                };
                writeln!(
                    svg,
                    "<text x=\"{left:.1}\" y=\"{:.1}\" fill=\"{}\"{bold} textLength=\"{long:.1}\" xml:space=\"preserve\">{}</text>",
                    top + 13.0,
                    color(first.fg),
                    escape(&text)
                )
            };
        }
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("a<b & \"c\">\u{7}"), "a&lt;b &amp; &quot;c&quot;&gt;?");
    }

    #[test]
    fn runs_have_one_element() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 10, 2));
        buffer.set_string(0, 0, "ab<", Style::new());
        buffer.set_string(3, 0, "██", Style::new().fg(Color::Green));
        buffer.set_string(0, 1, "bold", Style::new().add_modifier(Modifier::BOLD));
        let svg = svg(&buffer);
        assert_eq!(svg.matches("<text ").count(), 2, "{svg}");
        assert_eq!(svg.matches("<rect ").count(), 2, "{svg}");
        assert!(svg.contains("ab&lt;") && svg.contains("font-weight=\"bold\""), "{svg}");
    }
}
