// SPDX-License-Identifier: GPL-2.0
//! Renders tables.

/// Renders a table whose first `names` columns are text, and the others numbers. With `rst`, rules
/// are drawn as reStructuredText requires.
pub fn render<const N: usize>(
    head: [&str; N],
    names: usize,
    body: Vec<[String; N]>,
    rst: bool,
) -> String {
    let widths: Vec<usize> = head
        .iter()
        .enumerate()
        .map(|(i, head)| body.iter().map(|row| row[i].len()).chain([head.len()]).max())
        .map(|width| width.unwrap_or(0))
        .collect();
    let line = |cells: &[String]| -> String {
        let cells: Vec<String> = cells
            .iter()
            .zip(&widths)
            .enumerate()
            .map(
                |(i, (cell, width))| {
                    if i < names {
                        format!("{cell:<width$}")
                    } else {
                        format!("{cell:>width$}")
                    }
                },
            )
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    let rule: Vec<String> = widths.iter().map(|width| "=".repeat(*width)).collect();
    let head: Vec<String> = head.iter().map(|head| head.to_string()).collect();
    let mut text = String::new();
    if rst {
        text += &line(&rule);
    }
    text += &line(&head);
    text += &line(&rule);
    for row in &body {
        text += &line(row);
    }
    if rst {
        text += &line(&rule);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let body = vec![["a".to_string(), "10".to_string()], ["long".to_string(), "9".to_string()]];
        let text = "name  n\n====  ==\na     10\nlong   9\n";
        assert_eq!(
            render(["name", "n"], 1, body.clone(), false),
            text.replace("name  n", "name   n")
        );
        let rst = render(["name", "n"], 1, body, true);
        assert_eq!(rst.lines().filter(|line| line.starts_with('=')).count(), 3);
    }
}
