//! The page: text, lines and boxes, and the look of them.

use quantloom::dsl::layout::Axis;
use svg::node::Blob;
use svg::node::element::{Group as Nodes, Line, Rectangle, Style, Text, Title};
use svg::{Document, Node};

/// Width of a letter over its size, rounded up over the usual sans-serif faces.
const LETTER: f64 = 0.64;
/// Fills after Paul Tol's `light` scheme and outlines after his `muted` one (colour-blind safe).
const STYLE: &str = "
text { font-family: 'DejaVu Sans', Verdana, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #222 }
.title { font-size: 24px; font-weight: bold } .name { font-size: 17px; font-weight: bold }
.formula, .layout { font-family: 'DejaVu Sans Mono', Menlo, Consolas, monospace }
.formula { font-size: 16px } .layout { font-size: 14px }
.note { font-size: 12px } .caption { font-size: 12px; fill: #444 }
.word { font-size: 13px; font-weight: bold } .axis { font-size: 10px; fill: #444 }
.right { text-anchor: end } .middle { text-anchor: middle }
.box { stroke: #333; stroke-width: 1 } .cell { stroke: #fff; stroke-width: 1 }
.code0 { fill: #77aadd } .code1 { fill: #eedd88 } .code2 { fill: #44bb99 } .code3 { fill: #ffaabb }
.code4 { fill: #bbcc33 } .code5 { fill: #99ddff } .code6 { fill: #ee8866 } .code7 { fill: #d5c7e8 }
.scale0 { fill: #f7e6ee; stroke: #882255 } .scale1 { fill: #e6e4f4; stroke: #332288 }
.scale2 { fill: #e2f1e6; stroke: #117733 } .other { fill: #f1f1f1 } .pad { fill: url(#hatch) }
.group { fill: none; stroke-width: 3 } .edge { stroke: #222; stroke-width: 2 }
.group0 { stroke: #882255 } .group1 { stroke: #332288 } .group2 { stroke: #117733 }
.tick { stroke: #222; stroke-width: 1.5 } .rule { stroke: #ccc }
";
const HATCH: &str = "<defs><pattern id='hatch' width='7' height='7' patternUnits='userSpaceOnUse'
 patternTransform='rotate(45)'><rect width='7' height='7' fill='#f4f4f4'/>
<line y2='7' stroke='#bbb' stroke-width='2'/></pattern></defs>";
const WHITE: &str = "<rect width='100%' height='100%' fill='#fff'/>";
/// Distance of lines of text.
pub(super) const LEADING: f64 = 20.0;
pub(super) const WIDTH: f64 = 1200.0;
pub(super) const MARGIN: f64 = 28.0;

#[derive(Clone, Copy)]
pub(super) struct Area {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) w: f64,
    pub(super) h: f64,
}

/// What is drawn so far, and how far down.
pub(super) struct Page {
    pub(super) nodes: Nodes,
    pub(super) y: f64,
    /// The axis that codes are coloured by.
    pub(super) by: Axis,
}

impl Page {
    pub(super) fn text(&mut self, x: f64, y: f64, class: &str, text: impl Into<String>) {
        self.nodes.append(Text::new(text).set("x", x).set("y", y).set("class", class));
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let line = Line::new().set("x1", from.0).set("y1", from.1).set("x2", to.0).set("y2", to.1);
        self.nodes.append(line.set("class", class));
    }

    pub(super) fn rectangle(&mut self, area: Area, class: &str) {
        let Area { x, y, w, h } = area;
        let rectangle = Rectangle::new().set("x", x).set("y", y).set("width", w).set("height", h);
        self.nodes.append(rectangle.set("class", class));
    }

    /// Text in lines of at most so many letters.
    pub(super) fn paragraph(&mut self, class: &str, letters: usize, text: &str) {
        let mut lines = vec![String::new()];
        for word in text.split_inclusive(' ') {
            match lines.last_mut() {
                Some(line) if line.is_empty() || line.len() + word.len() <= letters => {
                    *line += word
                }
                _ => lines.push(word.to_owned()),
            }
        }
        for line in lines {
            self.text(MARGIN, self.y, class, line);
            self.y += LEADING;
        }
    }

    /// A box with its words, in one line if they fit, else one below the other; upright where
    /// the box is too narrow for either.
    pub(super) fn labelled(&mut self, area: Area, class: &str, words: &[String], tip: &str) {
        let letters = |line: &String| line.chars().count() as f64 * LETTER;
        let longest = words.iter().map(letters).fold(LETTER, f64::max);
        let (x, y) = (area.x + area.w / 2.0, area.y + area.h / 2.0);
        let upright = area.w < 16.0;
        let (w, h) = if upright { (area.h, area.w) } else { (area.w, area.h) };
        let one = words.join(" ");
        let in_one = ((w - 4.0) / letters(&one)).min(h - 2.0).min(12.0);
        let below = ((w - 2.0) / longest).min((h - 4.0) / words.len() as f64).min(12.0);
        let (lines, size) = match in_one < below && !upright {
            true => (words, below),
            false => (std::slice::from_ref(&one), in_one),
        };
        let mut label = Page { nodes: Nodes::new().add(Title::new(tip)), ..*self };
        label.rectangle(Area { x: x - w / 2.0, y: y - h / 2.0, w, h }, &format!("box {class}"));
        let top = y - size * 1.1 * (lines.len() - 1) as f64 / 2.0 + size * 0.36;
        for (at, line) in lines.iter().enumerate() {
            label.text(x, top + at as f64 * size * 1.1, "middle", line);
        }
        let label = label.nodes.set("font-size", format!("{size:.1}"));
        let turn = format!("rotate(-90 {x} {y})");
        self.nodes.append(if upright { label.set("transform", turn) } else { label });
    }

    pub(super) fn finish(self, name: &str) -> String {
        let height = self.y + MARGIN;
        let size = Document::new().set("width", WIDTH).set("height", height);
        let document = size.set("viewBox", (0, 0, WIDTH, height)).add(Title::new(name));
        let document = document.add(Style::new(STYLE)).add(Blob::new(HATCH));
        document.add(Blob::new(WHITE)).add(self.nodes).to_string()
    }
}
