//! The report: one page that needs nothing but itself. The table is coloured as EUROSYS22 table 1: green from 85 % of the
//! best, red below 30 %.

use std::fmt::Write;

use super::statistics::range;
use super::table::{number, series_names};
use super::{Results, ablations, device, goals, plot};
use crate::error::Error;
use crate::row::{Better, Line, Row};

const GREEN: f64 = 0.85;
const RED: f64 = 0.3;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:1320px;margin:2em auto;padding:0 1.5em}
h1{font-size:1.6em}h2{font-size:1.2em;margin-top:2em}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25em .7em;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{background:#f4f4f4}td small{color:#666;display:block;font-size:.75em}
.text{text-align:left!important;white-space:normal}.good{background:#c9ecc3}.bad{background:#f6c1bd}.none{color:#999}
.wide{overflow-x:auto}.wide table{font-size:.85em}.plots{display:flex;flex-wrap:wrap;gap:1em}figure{margin:0}figcaption{font-weight:600;margin:.5em 0}
svg{max-width:100%;height:auto}.key span{display:inline-block;margin-right:1.2em}
.key i{display:inline-block;width:1.6em;height:.25em;vertical-align:middle;margin-right:.4em}
pre{background:#f7f7f7;padding:.8em;overflow-x:auto}";

/// The whole page.
pub fn render(results: &Results) -> Result<String, Error> {
    let mut page = String::new();
    write_page(results, &mut page)?;
    Ok(page)
}

/// Writing to a String cannot fail.
macro_rules! put {
    ($page:expr, $($text:tt)*) => {
        writeln!($page, $($text)*).expect("a String takes all that is written to it")
    };
}

fn write_page(results: &Results, page: &mut String) -> Result<(), Error> {
    put!(page, "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>pando-bench</title>");
    put!(page, "<style>{STYLE}</style></head><body><h1>File systems beside each other</h1>");
    let machine = &results.machine;
    // Results of before do not tell.
    let caches =
        if machine.caches.is_empty() { String::new() } else { format!("; {} caches", machine.caches) };
    let conditions = format!(
        "{} cores of {}, {} MiB of memory, Linux {}, on {}{caches}; commit {}; {}",
        machine.cores,
        machine.processor,
        machine.memory_kib / 1024,
        machine.kernel,
        machine.storage,
        results.commit,
        results.sizes,
    );
    put!(page, "<p>{}</p>", escaped(&conditions));
    if results.rows().next().is_some() {
        table(results, page);
    }
    let goals = goals::render(results);
    if !goals.is_empty() {
        put!(page, "<h2>Goals</h2><pre>{}</pre>", escaped(&goals));
    }
    let ablations = ablations::render(results);
    if !ablations.is_empty() {
        put!(page, "<h2>Techniques</h2><pre>{}</pre>", escaped(&ablations));
    }
    plots(results, page)?;
    if results.rows().next().is_some() {
        traffic(results, page);
    }
    counted(results, page);
    failures(results, page);
    loads(results, page);
    columns(results, page);
    put!(page, "</body></html>");
    Ok(())
}

fn table(results: &Results, page: &mut String) {
    put!(
        page,
        "<h2>Table</h2><p>Medians; small, the smallest and the largest of several rounds. Green: at least 85 % of"
    );
    put!(
        page,
        "the best in the row; red: less than 30 %. The ratio is ours to the best peer, above one is better.</p>"
    );
    put!(page, "<table><tr><th>row</th>");
    results.columns.iter().for_each(|column| put!(page, "<th>{}</th>", escaped(&column.name)));
    put!(page, "<th>unit</th><th>best peer</th><th>ratio</th></tr>");
    for row in results.rows() {
        for line in row.lines {
            put!(page, "<tr><td>{}</td>", line.name);
            for column in &results.columns {
                put!(page, "{}", cell(results, row, line, &column.name));
            }
            let arrow = if line.better == Better::More { "\u{2191}" } else { "\u{2193}" };
            let peer = results.best_peer(line).map_or("", |(name, _)| name);
            let ratio = results.ratio(line);
            let class = class(ratio);
            let ratio = ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
            put!(page, "<td>{} {arrow}</td><td>{}</td>", line.unit, escaped(peer));
            put!(page, "<td class=\"{class}\"><b>{ratio}</b></td></tr>");
        }
    }
    put!(page, "</table>");
}

fn class(share: Option<f64>) -> &'static str {
    match share {
        Some(share) if share >= GREEN => "good",
        Some(share) if share < RED => "bad",
        _ => "",
    }
}

fn cell(results: &Results, row: &Row, line: &Line, column: &str) -> String {
    if results.failure(row.name, column).is_some() {
        return "<td class=\"bad\">FAILED</td>".to_owned();
    }
    let Some(median) = results.median(line.name, column) else {
        return "<td class=\"none\">-</td>".to_owned();
    };
    let values = results.values(line.name, column);
    let spread = match range(&values) {
        _ if values.len() < 2 => String::new(),
        (least, most) => format!("<small>{} to {}</small>", number(least), number(most)),
    };
    let rounds = results.rounds(row.name, column);
    let rounds = rounds.map_or(String::new(), |rounds| format!("<small>{rounds}</small>"));
    let class = class(results.share_of_best(line, column));
    format!("<td class=\"{class}\">{}{spread}{rounds}</td>", number(median))
}

fn plots(results: &Results, page: &mut String) -> Result<(), Error> {
    let mut figures = String::new();
    for row in results.rows_of_any_kind() {
        for name in series_names(results, row.name) {
            let columns = results.columns.iter().enumerate();
            let series: Vec<_> = columns
                .filter_map(|(index, column)| Some((index, results.series(row.name, &column.name, &name)?)))
                .collect();
            let caption = format!("{}: {name}", row.name);
            let plot = plot::draw(&series)?;
            put!(figures, "<figure><figcaption>{}</figcaption>{plot}</figure>", escaped(&caption));
        }
    }
    if !figures.is_empty() {
        put!(page, "<h2>Plots</h2><p class=\"key\">");
        for (index, column) in results.columns.iter().enumerate() {
            let colour = plot::colour(index);
            put!(page, "<span><i style=\"background:{colour}\"></i>{}</span>", escaped(&column.name));
        }
        put!(page, "</p><div class=\"plots\">{figures}</div>");
    }
    Ok(())
}

/// What each row did to the device, in MiB: read, written, discarded.
fn traffic(results: &Results, page: &mut String) {
    put!(
        page,
        "<h2>What the rows did to the device</h2><p>MiB read / written / discarded, and cache flushes, while the row was"
    );
    put!(page, "measured, in its last round.</p><table><tr><th>row</th>");
    results.columns.iter().for_each(|column| put!(page, "<th>{}</th>", escaped(&column.name)));
    put!(page, "</tr>");
    for row in results.rows() {
        put!(page, "<tr><td>{}</td>", row.name);
        for column in &results.columns {
            let of =
                |entry: &&crate::journal::Entry| entry.row == row.name && entry.file_system == column.name;
            let traffic = results.entries.iter().rev().filter(of).find_map(|entry| entry.traffic);
            match traffic {
                Some(one) => {
                    let [read, written, discarded] =
                        [one.read_bytes, one.written_bytes, one.discarded_bytes].map(|bytes| bytes >> 20);
                    put!(page, "<td>{read} / {written} / {discarded}, {}</td>", one.flushes);
                }
                None => put!(page, "<td class=\"none\">-</td>"),
            }
        }
        put!(page, "</tr>");
    }
    put!(page, "</table>");
}

/// What was counted in runs of their own.
fn counted(results: &Results, page: &mut String) {
    let tables = [
        (
            "Flash view and layout",
            "From a trace, in a run that was not timed. MiB (requests) read by the mount and the load, written by the load, and written \
             after it by the unmount; discarded; the amplification is what was written to the device over what the load wrote. Then erase \
             blocks written to, of each size, and the dynamic layout score of the load's reads: the share of blocks of 4 KiB that follow \
             the block read before, and the share of requests that do.",
            device::flash(results),
        ),
        (
            "Round trips",
            "Requests to the daemons of file systems in user space during the load.",
            device::round_trips(results),
        ),
        (
            "Waits for locks",
            "How often threads of PandoFS that serve requests slept until another let go of a lock during the load, how long all in all, and \
             how many of them waited at a time in the mean.",
            device::lock_waits(results),
        ),
    ];
    for (title, what, table) in tables {
        if table.lines.is_empty() {
            continue;
        }
        put!(page, "<h2>{title}</h2><p>{what}</p><div class=\"wide\"><table><tr>");
        for name in &table.head {
            put!(page, "<th{}>{name}</th>", text_class(name));
        }
        put!(page, "</tr>");
        for line in &table.lines {
            put!(page, "<tr>");
            for (head, cell) in table.head.iter().zip(line) {
                put!(page, "<td{}>{}</td>", text_class(head), escaped(cell));
            }
            put!(page, "</tr>");
        }
        put!(page, "</table></div>");
    }
}

/// For columns that hold words.
fn text_class(head: &str) -> &'static str {
    if ["file system", "of which"].contains(&head) { " class=\"text\"" } else { "" }
}

fn failures(results: &Results, page: &mut String) {
    let mut list = String::new();
    for (row, column, why) in results.failures() {
        let rounds = results.rounds(row, column).map_or(String::new(), |rounds| format!(", {rounds}"));
        put!(list, "<li>{row} on {}{rounds}: {}</li>", escaped(column), escaped(why));
    }
    if !list.is_empty() {
        put!(page, "<h2>What failed</h2><ul>{list}</ul>");
    }
}

fn loads(results: &Results, page: &mut String) {
    put!(page, "<h2>Loads</h2><table>");
    for row in results.rows_of_any_kind() {
        put!(page, "<tr><td>{}</td><td class=\"text\">{}</td></tr>", row.name, escaped(row.what));
    }
    put!(page, "</table>");
}

fn columns(results: &Results, page: &mut String) {
    put!(
        page,
        "<h2>File systems</h2><table><tr><th>name</th><th>version</th><th>format</th><th>mount</th></tr>"
    );
    for column in results.columns.iter().chain(&results.ablations) {
        put!(page, "<tr><td>{}</td>", escaped(&column.name));
        for text in [&column.version, &column.format, &column.mount] {
            put!(page, "<td class=\"text\">{}</td>", escaped(text));
        }
        put!(page, "</tr>");
    }
    put!(page, "</table>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
