//! A scheme's packing as a picture: which bits of memory hold which weights.
//!
//! In: a checked [`Scheme`]. Out: one SVG. At the top the value's formula and a corner of the
//! weight matrix with its groups and words; below it, for each stored tensor, the first words
//! as people write them, top bit at the left, and the word one step on along each dimension.
//! No box is drawn from a layout's text: each is what `Bound::slot` answers, and each formula
//! is what `Bound` says at one shape and at its doubles.
//!
//! Reading order: this file (the picture, top down), `view` (what is where), `page`.

mod page;
mod view;

use std::collections::BTreeSet;

use quantloom::dsl::layout::{
    Axis, BitContent, Component, Element, Granularity, GroupSize, Index, Shape,
};
use quantloom::dsl::{Code, Group, Scheme, ZeroKind};
use svg::node::element::Group as Nodes;

use page::{Area, LEADING, MARGIN, Page, WIDTH};
use view::{Spot, View};

/// Divisible by every usual digit and group, so that formulas are exact.
const SHAPE: Shape = Shape { experts: 8, n: 256, k: 3840 };
/// Rows and columns of the weight matrix that are drawn.
const GRID: (u64, u64) = (8, 36);
/// Colours of codes, `code0` and so on in the page's `STYLE`; outlines of groups and tints of scales.
const COLOURS: u64 = 8;
const TINTS: usize = 3;
/// Left edge of words, and the width of 32 bits; captions are at their right.
const WORD: (f64, f64) = (164.0, 768.0);
/// Left edge of the matrix, and its cells.
const MATRIX_X: f64 = 480.0;
const CELL: f64 = 17.0;

/// Draws a scheme: its formula, its groups, and where the bits of its stores are.
pub(crate) fn picture(scheme: &Scheme) -> String {
    let experts = if scheme.experts.is_some() { SHAPE.experts } else { 1 };
    let shape = Shape { experts, ..SHAPE };
    let views: Vec<_> = scheme.stores.iter().map(|store| View::new(scheme, store, shape)).collect();
    let bound = views.iter().filter_map(|view| view.as_ref().ok());
    let codes: Vec<_> = bound.filter(|view| view.store.layout.holds(Component::Code)).collect();
    let by = codes.first().map_or(Axis::K, |view| view.running_axis());

    let mut page = Page { nodes: Nodes::new(), y: MARGIN + 16.0, by };
    page.paragraph("title", 60, &scheme.name);
    page.y += 8.0;
    page.paragraph("formula", 116, &value_formula(scheme));
    page.y += LEADING;
    let top = page.y;
    legend(&mut page, scheme, shape);
    let below = std::mem::replace(&mut page.y, top);
    for view in codes {
        matrix(&mut page, view);
    }
    page.y = page.y.max(below);
    for (view, store) in views.iter().zip(&scheme.stores) {
        match view {
            Ok(view) => stored_tensor(&mut page, view),
            Err(error) => page.paragraph("note", 145, &format!("{}: {error}", store.name)),
        }
    }
    page.finish(&scheme.name)
}

/// `w[n, k] = (code[n, k] - 8) * scale[n, k/128]`.
fn value_formula(scheme: &Scheme) -> String {
    let at = |component: Component| {
        let along = |axis: &str, group_size| match group_size {
            GroupSize::Each(1) => Some(axis.to_owned()),
            GroupSize::Each(_) if axis == "k" && scheme.index.is_some() => {
                Some("index[k]".to_owned())
            }
            GroupSize::Each(count) => Some(format!("{axis}/{count}")),
            GroupSize::All => None,
        };
        let granularity = scheme.granularity(component);
        let list = granularity
            .map(|granularity| [along("n", granularity.rows), along("k", granularity.cols)]);
        match list.into_iter().flatten().flatten().collect::<Vec<_>>().join(", ") {
            list if list.is_empty() => component.to_string(),
            list => format!("{component}[{list}]"),
        }
    };
    let code = match &scheme.weight.code {
        Code::Number(_) => "code[n, k]",
        Code::Codebook(_) => "table[code[n, k]]",
    };
    let less_text = |offset: i32| match offset {
        0 => String::new(),
        offset if offset < 0 => format!(" + {}", -offset),
        offset => format!(" - {offset}"),
    };
    let less = |number: String, offset: i32| match offset {
        0 => number,
        offset => format!("({number}{})", less_text(offset)),
    };
    let offset = less_text(scheme.weight.offset);
    let zero = match scheme.zero.map(|zero| zero.kind) {
        None => String::new(),
        Some(ZeroKind::Codes { plus, .. }) if plus != 0 => {
            format!(" - ({} + {plus})", at(Component::Zero))
        }
        Some(_) => format!(" - {}", at(Component::Zero)),
    };
    let mut value = match offset + &zero {
        all if all.is_empty() => format!("w[n, k] = {code}"),
        all => format!("w[n, k] = ({code}{all})"),
    };
    for (level, scale) in (0u8..).zip(&scheme.scales) {
        let sign = if scale.divide { '/' } else { '*' };
        value += &format!(" {sign} {}", less(at(Component::Scale(level)), scale.offset));
    }
    let factors = (0u8..).zip(&scheme.shifts);
    let factors = factors.map(|(level, shift)| less(at(Component::Shift(level)), shift.offset));
    match factors.collect::<Vec<_>>() {
        factors if factors.is_empty() => value,
        factors => {
            let negative = scheme.shifts.iter().filter(|shift| shift.negative).count() % 2 == 1;
            format!("{value} {} {}", if negative { '-' } else { '+' }, factors.join(" * "))
        }
    }
}

/// What shares one scale, zero point or shift: each group once, with the components it is of.
fn groups(scheme: &Scheme) -> Vec<(Group, Vec<String>)> {
    let mut groups: Vec<(Group, Vec<String>)> = Vec::new();
    for component in scheme.components() {
        let granularity = match component {
            Component::Scale(_) | Component::Zero | Component::Shift(_) => {
                scheme.granularity(component)
            }
            _ => None,
        };
        let Some(Granularity { rows, cols, .. }) = granularity else { continue };
        let group = Group { rows, cols };
        match groups.iter_mut().find(|(other, _)| *other == group) {
            Some((_, names)) => names.push(component.to_string()),
            None => groups.push((group, vec![component.to_string()])),
        }
    }
    groups
}

fn code_class(index: Index, by: Axis) -> String {
    format!("code{}", if by == Axis::N { index.n } else { index.k } % COLOURS)
}

fn slot_class(slot: BitContent, by: Axis) -> String {
    match slot {
        BitContent::Bit(Element { component: Component::Code, index, .. }) => code_class(index, by),
        BitContent::Bit(Element { component: Component::Scale(level), .. }) => {
            format!("scale{}", usize::from(level) % TINTS)
        }
        BitContent::Bit(_) => "other".to_owned(),
        BitContent::Sign(..) | BitContent::Hole(_) => "pad".to_owned(),
    }
}

/// What codes are worth, and what labels, colours and outlines mean.
fn legend(page: &mut Page, scheme: &Scheme, shape: Shape) {
    let (low, high) = scheme.weight.range();
    let code = match &scheme.weight.code {
        Code::Number(_) => format!("code: {}, worth {low} to {high}", scheme.weight),
        Code::Codebook(table) => format!("code: one of {} values, {low} to {high}", table.len()),
    };
    page.paragraph("note", 55, &code);
    page.paragraph("note", 55, "n0 k3: the code of w[0, 3]; b0-1: only its bits 0 and 1");
    for colour in 0..COLOURS {
        let x = MARGIN + colour as f64 * CELL;
        let area = Area { x, y: page.y - 12.0, w: CELL, h: 15.0 };
        page.rectangle(area, &format!("cell code{colour}"));
    }
    let x = MARGIN + (COLOURS as f64 + 0.6) * CELL;
    page.text(x, page.y, "note", format!("{} mod {COLOURS}", page.by));
    for (level, (group, names)) in groups(scheme).into_iter().enumerate() {
        page.y += LEADING;
        let extent = match (group.rows, group.cols) {
            (GroupSize::All, _) => "the whole tensor".to_owned(),
            (GroupSize::Each(1), GroupSize::All) => "a row".to_owned(),
            (GroupSize::Each(rows), GroupSize::All) => format!("{rows} rows"),
            (_, GroupSize::Each(_)) if scheme.index.is_some() => "the k of one index".to_owned(),
            (GroupSize::Each(rows), GroupSize::Each(cols)) => format!("{rows} x {cols} weights"),
        };
        if scheme.index.is_none() {
            let area = Area { x: MARGIN + 2.0, y: page.y - 11.0, w: 46.0, h: 12.0 };
            page.rectangle(area, &format!("group group{}", level % TINTS));
        }
        let text = format!("{}: one for {extent}", names.join(", "));
        page.text(MARGIN + 60.0, page.y, "note", text);
    }
    page.y += LEADING;
    let experts =
        if shape.experts > 1 { format!("E = {}, ", shape.experts) } else { String::new() };
    let drawn = format!("drawn for {experts}N = {}, K = {}", shape.n, shape.k);
    page.paragraph("caption", 55, &drawn);
}

/// Indices that are drawn along an axis, `None` for an ellipsis: the first few, and where a
/// large group ends and the next one begins.
fn sample(group: u64, most: u64, extent: u64) -> Vec<Option<u64>> {
    let large = group > most / 2;
    let few = if large { most * 2 / 3 } else { most - most % group };
    let border = if large { group - 2..group + most / 4 } else { 0..0 };
    let wanted: BTreeSet<u64> = (0..few).chain(border).filter(|index| *index < extent).collect();
    let (mut drawn, mut next) = (Vec::new(), 0);
    for index in wanted {
        drawn.extend((index != next).then_some(None));
        drawn.push(Some(index));
        next = index + 1;
    }
    drawn.push(None);
    drawn
}

/// A corner of the weight matrix: colours as in the words, the words' borders, the groups.
fn matrix(page: &mut Page, view: &View<'_>) {
    let groups = groups(view.scheme);
    let finest = |of: fn(&Group) -> GroupSize| {
        let sizes = groups.iter().filter_map(|(group, _)| match of(group) {
            GroupSize::Each(size) => Some(u64::from(size)),
            GroupSize::All => None,
        });
        sizes.min().unwrap_or(1)
    };
    let rows = sample(finest(|group| group.rows), GRID.0, view.bound.shape().n);
    let cols = sample(finest(|group| group.cols), GRID.1, view.bound.shape().k);
    let top = page.y + 34.0;
    let x = |col: usize| MATRIX_X + col as f64 * CELL;
    let y = |row: usize| top + row as f64 * CELL;
    let edges = edges(view, &rows, &cols);
    let (noun, name) = (view.noun, &view.store.name);
    let title = match edges.is_empty() {
        true => format!("w[n, k]; each {noun} of {name} holds one code"),
        false => format!("w[n, k]; black lines: borders of the {noun}s of {name}"),
    };
    page.text(MATRIX_X, page.y, "note", title);
    for (col, k) in cols.iter().enumerate() {
        match k {
            Some(k) if k % 4 == 0 => page.text(x(col) + 2.0, top - 7.0, "axis", format!("k{k}")),
            Some(_) => {}
            None => page.text(x(col) + 2.0, y(rows.len() / 2), "word", "…"),
        }
    }
    for (row, n) in rows.iter().enumerate() {
        let name = n.map_or("…".to_owned(), |n| format!("n{n}"));
        page.text(MATRIX_X - 10.0, y(row) + 12.0, "axis right", name);
        for (col, k) in cols.iter().enumerate() {
            let (Some(n), Some(k)) = (*n, *k) else { continue };
            let class = format!("cell {}", code_class(Index { e: 0, n, k }, page.by));
            page.rectangle(Area { x: x(col), y: y(row), w: CELL, h: CELL }, &class);
        }
    }
    for edge in edges {
        let at = |(col, row): (f64, f64)| (MATRIX_X + col * CELL, top + row * CELL);
        page.line(at(edge.0), at(edge.1), "edge");
    }
    let outlined = groups.iter().enumerate().filter(|_| view.scheme.index.is_none());
    for (level, (group, _)) in outlined {
        // Ellipses count to what they stand between; a group without end takes them all.
        let inside = |list: &[Option<u64>], group_size: GroupSize| {
            let beyond = list.iter().position(|at| at.is_some_and(|at| group_size.group(at) > 0));
            beyond.unwrap_or(list.len()) as f64 * CELL
        };
        let grow = level as f64 * 3.0;
        let (w, h) = (inside(&cols, group.cols), inside(&rows, group.rows));
        let (w, h) = (w + 2.0 * grow, h + 2.0 * grow);
        let area = Area { x: MATRIX_X - grow, y: top - grow, w, h };
        page.rectangle(area, &format!("group group{}", level % TINTS));
    }
    page.y = y(rows.len()) + LEADING;
}

type Point = (f64, f64);

/// Where one word ends and the next begins, in cells: between two codes that share no word,
/// and through the middle of a code that straddles.
fn edges(view: &View<'_>, rows: &[Option<u64>], cols: &[Option<u64>]) -> Vec<(Point, Point)> {
    let words = |row: usize, col: usize| -> Option<BTreeSet<u64>> {
        let (n, k) = ((*rows.get(row)?)?, (*cols.get(col)?)?);
        Some(view.holders(Component::Code, Index { e: 0, n, k }).into_keys().collect())
    };
    let mut edges = Vec::new();
    let first = view.holders(Component::Code, Index::default()).pop_first();
    if first.is_none_or(|(word, _)| view.elements(word).len() < 2) {
        return edges;
    }
    for (row, col) in (0..rows.len()).flat_map(|row| (0..cols.len()).map(move |col| (row, col))) {
        let Some(here) = words(row, col) else { continue };
        let apart = |other: Option<BTreeSet<u64>>| other.is_some_and(|o| o.is_disjoint(&here));
        let (x, y) = (col as f64, row as f64);
        if apart(words(row, col + 1)) {
            edges.push(((x + 1.0, y), (x + 1.0, y + 1.0)));
        }
        if apart(words(row + 1, col)) {
            edges.push(((x, y + 1.0), (x + 1.0, y + 1.0)));
        }
        if here.len() > 1 {
            edges.push(((x + 0.5, y), (x + 0.5, y + 1.0)));
        }
    }
    edges
}

/// A store: its name, layout and shape, then its words.
fn stored_tensor(page: &mut Page, view: &View<'_>) {
    page.y += 8.0;
    page.line((MARGIN, page.y), (WIDTH - MARGIN, page.y), "rule");
    page.y += 28.0;
    page.paragraph("name", 100, &view.store.name);
    let dim = |at| view.formula(|view| view.bound.dims().get(at).copied()).unwrap_or_default();
    let dims: Vec<String> = (0..view.bound.dims().len()).map(dim).collect();
    let layout = view.store.layout.display(view.store.owner);
    let stored = format!("{layout}, tensor [{}] of {}", dims.join(", "), view.type_name);
    page.paragraph("layout", 132, &stored);
    page.y += 8.0;
    bit_numbers(page, view);
    let words: Vec<(u64, Spot)> = view.words().into_iter().collect();
    for (at, (word, spot)) in words.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| words.get(at));
        let neighbour = before.filter(|(before, _)| before + 1 == *word);
        if before.is_some() && neighbour.is_none() {
            page.text((WORD.0 + view.right()) / 2.0, page.y + 2.0, "word middle", "…");
            page.y += LEADING;
        }
        let caption = match neighbour {
            None if at == 0 => String::new(),
            Some((_, from)) => format!("next {}: {}", view.noun, view.change(*from, *spot)),
            None => {
                let distance = view.place(*spot).unwrap_or_else(|| word.to_string());
                let change = view.change(Spot::Nth(0), *spot);
                format!("{} 0 + {distance}: {change}", view.noun)
            }
        };
        one_word(page, view, *word, *spot, &caption);
    }
}

fn bit_numbers(page: &mut Page, view: &View<'_>) {
    let bit = view.bit();
    for at in (0..view.width).filter(|at| bit > 15.0 || at % 8 == 0) {
        let middle = view.right() - (at as f64 + 0.5) * bit;
        page.text(middle, page.y + 14.0, "axis middle", at.to_string());
        if at % 8 == 0 && view.width > 8 {
            page.text(middle - 3.5 * bit, page.y, "axis middle", format!("byte {}", at / 8));
        }
    }
    page.y += 24.0;
}

/// A word: its number and address at the left, its boxes, and a caption at the right.
fn one_word(page: &mut Page, view: &View<'_>, word: u64, spot: Spot, caption: &str) {
    let (bit_fields, bit, right) = (view.bit_fields(word), view.bit(), view.right());
    let height = if bit_fields.len() > 1 { 44.0 } else { 34.0 };
    let (y, middle, left) = (page.y, page.y + height / 2.0, WORD.0 - 12.0);
    let name = format!("{} {word}", view.noun);
    let place = match view.place(spot) {
        Some(formula) => format!("= {formula}"),
        None if view.noun == "byte" => String::new(),
        None => format!("byte {}", word * view.width / 8),
    };
    page.text(left, middle - 2.0, "word right", &name);
    page.text(left, middle + 13.0, "caption right", place);
    for field in bit_fields {
        let high = field.at + u64::from(field.bits);
        let (x, w) = (right - high as f64 * bit, f64::from(field.bits) * bit);
        let words = view.bit_field_label(&field);
        let tip = format!("{name} bits {}-{}: {}", field.at, high - 1, words.join(" "));
        let class = slot_class(field.slot, page.by);
        page.labelled(Area { x, y, w, h: height }, &class, &words, &tip);
    }
    for byte in (0..=view.width).step_by(8) {
        let x = right - byte as f64 * bit;
        page.line((x, y - 4.0), (x, y + 3.0), "tick");
        page.line((x, y + height - 3.0), (x, y + height + 4.0), "tick");
    }
    page.text(right + 14.0, middle + 4.0, "caption", caption);
    page.y += height + 12.0;
}

#[cfg(test)]
mod tests {
    use svg::node::element::tag::Type;
    use svg::parser::Event;

    use super::*;

    const W4: &str = "S { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n],
                          activation: bf16 }";
    const AWQ: &str =
        "S { weight: u4, zero: u4 u32 [n/2:4, n:2 | n, g], scale: f16 per 1x128 [n, g],
                           pack: u32 [n/2:4, n:2 | n, k], activation: f16 }";
    const GPTQ3: &str = "S { weight: u3 - 4, scale: f16 per 1x128, pack: u32 [k:32 | n, w, k],
                             activation: f16 }";
    const MSF3: &str = "S { weight: u3 - 4, scale: f16 per channel, pack: u32 msf [k:32 | w, k, n],
                            activation: f16 }";
    const INT4: &str =
        "S { weight: i4, scale: f32 per channel, pack: i8 [code, pad 4 = sign | k, n],
                            activation: f16 }";
    const PLANES: &str =
        "S { weight: u6 - 32, scale: f16 per 1x128, pack: u8 [code[4..6], k:4 | k, n],
                              pack: u8 [code[0..4], k:2 | k, n], activation: f16 }";
    const RECORD: &str = "S { weight: u4 - 8, scale: f16 per 1x32,
                              pack: for [g, n] { scale, u8 [k/16:2 | k:16] }, activation: f16 }";
    const FP8: &str = "S { weight: e4m3, scale: f32 per 128x128 [g, n, e], pack: [k, n, e],
                           experts: concatenated, activation: bf16, bias: bf16 [n, e] }";
    const BITS: &str = "S { weight: codebook(-1, 1), shift: f16 per 1x128, scale: f16 per 1x128,
                            pack: u64 [k:64 | k, n], activation: f16 }";

    const MINIMA: &str = "S { weight: u4, scale: u6 - 32 per 1x16, shift: -u6 + 1,
                              shift: f16 per channel, pack: u8 [k:2 | k, n], activation: f16 }";

    fn drawn(text: &str) -> String {
        picture(&quantloom::dsl::parse(text).expect("a scheme"))
    }

    /// The labels of boxes whose tips begin so, lowest bits first.
    fn labels(picture: &str, word: &str) -> Vec<String> {
        let tips = picture.split("<title>").filter_map(|rest| rest.trim().split('<').next());
        let of_word = tips.filter_map(|tip| tip.strip_prefix(word)?.strip_prefix(" bits "));
        of_word.filter_map(|tip| Some(tip.split_once(": ")?.1.trim().to_owned())).collect()
    }

    #[test]
    fn boxes_hold_what_the_layout_says() {
        let ks = |ks: std::ops::Range<u64>| ks.map(|k| format!("n0 k{k}")).collect::<Vec<_>>();
        let straddling = [ks(0..10), vec!["n0 k10 b0-1".to_owned()]].concat();
        let next =
            [vec!["n0 k10 b2".to_owned()], ks(11..21), vec!["n0 k21 b0".to_owned()]].concat();
        let down = [vec!["n0 k10 b1-2".to_owned()], ks(0..10).into_iter().rev().collect()].concat();
        let awq = [0, 2, 4, 6, 1, 3, 5, 7].map(|n| format!("n{n} k0")).to_vec();
        let slices = (0..4).map(|k| format!("n0 k{k} b4-5")).collect();
        let sign = ["n0 k0", "sign n0 k0"].map(str::to_owned).to_vec();
        let cases = [
            (W4, "word 0", ks(0..8)),
            (AWQ, "word 0", awq),
            (GPTQ3, "word 0", straddling),
            (GPTQ3, "word 256", next),
            (MSF3, "word 0", down),
            (INT4, "word 0", sign),
            (PLANES, "word 0", slices),
            (RECORD, "byte 0", vec!["scale n0 g0 b0-7".to_owned()]),
            (RECORD, "byte 2", ["n0 k0", "n0 k16"].map(str::to_owned).to_vec()),
            (FP8, "element 3840", vec!["n1 k0".to_owned()]),
        ];
        for (text, word, expected) in cases {
            let found = labels(&drawn(text), word);
            assert_eq!(found.get(..expected.len()), Some(&expected[..]), "{word} of {text}");
        }
    }

    #[test]
    fn captions_say_what_comes_next() {
        let cases = [
            (W4, "next word: k + 8"),
            (W4, "word 0 + K/8: n + 1"),
            (W4, "w[n, k] = (code[n, k] - 8) * scale[n, k/128]"),
            (AWQ, "word 0 + N/8: k + 1"),
            (AWQ, "(code[n, k] - zero[n, k/128]) * scale[n, k/128]"),
            (GPTQ3, "tensor [3K/32, N] of u32"),
            (GPTQ3, "word 0 + 2N: n0 k21 goes on"),
            (GPTQ3, "word 0 + 3N: k + 32"),
            (RECORD, "byte 0 + 9K/16: n + 1"),
            (FP8, "element 0 + NK: e + 1"),
            (BITS, "w[n, k] = table[code[n, k]] * scale[n, k/128] + shift[n, k/128]"),
            (
                MINIMA,
                "w[n, k] = code[n, k] * (scale[n, k/16] - 32) - (shift[n, k/16] + 1) * shift2[n]",
            ),
        ];
        for (text, caption) in cases {
            assert!(drawn(text).contains(caption), "`{caption}` in {text}");
        }
    }

    #[test]
    fn pictures_are_well_formed_and_stay_on_the_page() {
        for text in [W4, AWQ, GPTQ3, MSF3, INT4, PLANES, RECORD, FP8, BITS] {
            let picture = drawn(text);
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{text}");
            let (mut open, mut height) = (Vec::new(), 0.0);
            for event in svg::parser::Parser::new(&picture) {
                let (name, kind, attributes) = match event {
                    Event::Tag(name, kind, attributes) => (name, kind, attributes),
                    Event::Error(error) => panic!("{error} in {text}"),
                    _ => continue,
                };
                match kind {
                    Type::Start => open.push(name),
                    Type::End => assert_eq!(open.pop(), Some(name), "{text}"),
                    Type::Empty => {}
                }
                let number = |key: &str| -> Option<f64> { attributes.get(key)?.parse().ok() };
                if name == "svg" && kind == Type::Start {
                    height = number("height").unwrap_or(0.0);
                }
                let right = number("x").unwrap_or(0.0) + number("width").unwrap_or(0.0);
                let below = number("y").unwrap_or(0.0) + number("height").unwrap_or(0.0);
                assert!(right <= WIDTH && below <= height, "<{name}> at {right}, {below}: {text}");
            }
            assert!(open.is_empty(), "{open:?} stay open in {text}");
        }
    }
}
