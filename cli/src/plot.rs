//! Measured rates as a picture: operations a second over M, below what the machine allows.
//!
//! In: lines of points, each with its roof. Out: one SVG. Both axes are logarithmic: at small M a
//! product is bound by reading the weights and its roof climbs, at large M by multiplying and its
//! roof is level.

use svg::node::Blob;
use svg::node::element::{Circle, Group, Line as Segment, Polyline, Rectangle, Style, Text, Title};
use svg::{Document, Node};

/// One product over M.
pub(crate) struct Line {
    /// Its name.
    pub(crate) name: String,
    /// What ran.
    pub(crate) note: String,
    /// M, 10^9 operations a second, and the most that the machine allows.
    pub(crate) points: Vec<(f64, f64, f64)>,
}

/// Paul Tol's `bright` scheme, then his `muted` one: told apart also by the colour-blind.
const COLOURS: [&str; 8] =
    ["#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#332288", "#999933"];
const STYLE: &str = "
text { font-family: 'DejaVu Sans', Verdana, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #222 }
.title { font-size: 20px; font-weight: bold } .note { font-size: 12.5px; fill: #555 }
.axis { font-size: 12.5px; fill: #444 } .name { font-size: 13.5px; font-weight: bold }
.end { text-anchor: end } .middle { text-anchor: middle }
.grid { stroke: #e4e4e4 } .frame { stroke: #999; fill: none }
.line { fill: none; stroke-width: 2.6; stroke-linejoin: round }
.roof { fill: none; stroke-width: 1.4; stroke-dasharray: 5 4; opacity: 0.65 }
";
const SIZE: (f64, f64) = (1060.0, 640.0);
/// Left, top, right, bottom of the frame.
const FRAME: (f64, f64, f64, f64) = (92.0, 92.0, 740.0, 570.0);

/// A logarithmic axis.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn at(&self, value: f64) -> f64 {
        let share = (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln());
        self.from + share * (self.to - self.from)
    }
}

/// Draws the lines, the first ones foremost.
pub(crate) fn plot(title: &str, notes: &[String], lines: &[Line]) -> String {
    let values = |of: fn(&(f64, f64, f64)) -> [f64; 2]| {
        let all = lines.iter().flat_map(move |line| line.points.iter().flat_map(of));
        all.filter(|value| value.is_finite() && *value > 0.0)
            .fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v), high.max(v)))
    };
    let (m_low, m_high) = values(|(m, ..)| [*m, *m]);
    let (y_low, y_high) = values(|(_, y, roof)| [*y, *roof]);
    let (left, top, right, bottom) = FRAME;
    // Half a step of room at either end.
    let across = Scale { low: m_low / 1.4, high: m_high * 1.4, from: left, to: right };
    let decade = |value: f64, up: bool| {
        let exponent = value.log10();
        10f64.powf(if up { exponent.ceil() } else { exponent.floor() })
    };
    let (low, high) = (decade(y_low, false), decade(y_high * 1.02, true));
    let high = if high > low { high } else { low * 10.0 };
    let up = Scale { low, high, from: bottom, to: top };

    let mut nodes = Group::new();
    nodes.append(Text::new(title).set("x", left).set("y", 36).set("class", "title"));
    for (at, note) in notes.iter().enumerate() {
        let y = 58.0 + 17.0 * at as f64;
        nodes.append(Text::new(note).set("x", left).set("y", y).set("class", "note"));
    }
    axes(&mut nodes, &across, &up, lines);
    for (at, line) in lines.iter().enumerate().rev() {
        draw(&mut nodes, line, COLOURS[at % COLOURS.len()], &across, &up);
    }
    legend(&mut nodes, lines);
    let document = Document::new().set("width", SIZE.0).set("height", SIZE.1);
    let document = document.set("viewBox", (0, 0, SIZE.0, SIZE.1)).add(Title::new(title));
    let white = Blob::new("<rect width='100%' height='100%' fill='#fff'/>");
    document.add(Style::new(STYLE)).add(white).add(nodes).to_string()
}

fn axes(nodes: &mut Group, across: &Scale, up: &Scale, lines: &[Line]) {
    let (left, top, right, bottom) = FRAME;
    let line = |x1: f64, y1: f64, x2: f64, y2: f64| {
        Segment::new().set("x1", x1).set("y1", y1).set("x2", x2).set("y2", y2).set("class", "grid")
    };
    let mut tick = up.low;
    while tick <= up.high * 1.001 {
        for step in [1.0, 2.0, 5.0] {
            let value = tick * step;
            if value <= up.high * 1.001 {
                let y = up.at(value);
                nodes.append(line(left, y, right, y));
                let text = Text::new(format!("{value}")).set("x", left - 10.0).set("y", y + 4.5);
                nodes.append(text.set("class", "axis end"));
            }
        }
        tick *= 10.0;
    }
    let mut tokens: Vec<f64> =
        lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
    tokens.sort_by(f64::total_cmp);
    tokens.dedup();
    let mut last = f64::NEG_INFINITY;
    for m in tokens {
        let x = across.at(m);
        nodes.append(line(x, top, x, bottom));
        // Neighbours that are too close share a label's room.
        if x - last > 26.0 {
            let text = Text::new(format!("{m}")).set("x", x).set("y", bottom + 20.0);
            nodes.append(text.set("class", "axis middle"));
            last = x;
        }
    }
    let frame = Rectangle::new().set("x", left).set("y", top).set("class", "frame");
    nodes.append(frame.set("width", right - left).set("height", bottom - top));
    let below = Text::new("M, tokens").set("x", (left + right) / 2.0).set("y", bottom + 46.0);
    nodes.append(below.set("class", "axis middle"));
    let beside = Text::new("10⁹ operations a second").set("class", "axis middle");
    let (x, y) = (30.0, (top + bottom) / 2.0);
    nodes.append(beside.set("x", x).set("y", y).set("transform", format!("rotate(-90 {x} {y})")));
}

fn draw(nodes: &mut Group, line: &Line, colour: &str, across: &Scale, up: &Scale) {
    let path = |of: fn(&(f64, f64, f64)) -> f64| {
        let points = line.points.iter().filter(|point| of(point) > 0.0);
        let at = points.map(|point| format!("{:.1},{:.1}", across.at(point.0), up.at(of(point))));
        at.collect::<Vec<_>>().join(" ")
    };
    let roof = Polyline::new().set("points", path(|point| point.2)).set("class", "roof");
    nodes.append(roof.set("stroke", colour));
    let measured = Polyline::new().set("points", path(|point| point.1)).set("class", "line");
    nodes.append(measured.set("stroke", colour));
    for (m, rate, roof) in &line.points {
        let tip = format!("{}, M = {m}: {rate:.0} of {roof:.0}", line.name);
        let dot = Circle::new().set("cx", across.at(*m)).set("cy", up.at(*rate)).set("r", 4.2);
        nodes.append(dot.set("fill", colour).add(Title::new(tip)));
    }
}

fn legend(nodes: &mut Group, lines: &[Line]) {
    let x = FRAME.2 + 26.0;
    for (at, line) in lines.iter().enumerate() {
        let y = FRAME.1 + 14.0 + 44.0 * at as f64;
        let colour = COLOURS[at % COLOURS.len()];
        let mark = Segment::new().set("x1", x).set("x2", x + 24.0).set("y1", y).set("y2", y);
        nodes.append(mark.set("stroke", colour).set("stroke-width", 3));
        nodes.append(
            Circle::new().set("cx", x + 12.0).set("cy", y).set("r", 4.2).set("fill", colour),
        );
        let name = Text::new(&line.name).set("x", x + 34.0).set("y", y + 5.0);
        nodes.append(name.set("class", "name"));
        let note = Text::new(&line.note).set("x", x + 34.0).set("y", y + 21.0);
        nodes.append(note.set("class", "note"));
    }
}
