//! An expert layer as text, and back: one line of words. What is absent is not printed.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use super::{ExpertGroups, ExpertLayer, ExpertLayerError, Gate, Routing, Score};

impl Display for ExpertLayer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} experts of {} x {}", self.experts, self.hidden, self.intermediate)?;
        write!(f, ", top {}, {}, {}", self.top_k, self.routing, self.gate)?;
        if self.weight_on_input { f.write_str(", weight on input") } else { Ok(()) }
    }
}

impl Display for Routing {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.score.name())?;
        if self.bias {
            f.write_str(" with bias")?;
        }
        if let Some(ExpertGroups { count, keep }) = self.groups {
            write!(f, " in {keep} of {count} groups")?;
        }
        if self.renormalise {
            f.write_str(" renormalised")?;
        }
        if self.scale != 1.0 {
            write!(f, " times {}", self.scale)?;
        }
        Ok(())
    }
}

impl Display for Gate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.shards() == 1 {
            f.write_str("ungated ")?;
        }
        f.write_str(self.name())?;
        self.numbers().try_for_each(|(name, value)| write!(f, " {name} {value}"))
    }
}

/// Parses a description and checks it.
impl FromStr for ExpertLayer {
    type Err = ExpertLayerError;

    fn from_str(text: &str) -> Result<Self, ExpertLayerError> {
        let mut words = Words::new(text);
        let experts = words.number("the number of experts")?;
        words.expect("experts of")?;
        let hidden = words.number("the hidden size")?;
        words.expect("x")?;
        let intermediate = words.number("the intermediate size")?;
        words.expect(", top")?;
        let top_k = words.number("the number of experts of a token")?;
        words.expect(",")?;
        let routing = words.routing()?;
        if !words.accept(",") {
            return Err(words.error("a word of the routing, in their order, or `,` and the gate"));
        }
        let gate = words.gate()?;
        let weight_on_input = words.accept(", weight on input");
        words.end("`, weight on input` or the end")?;
        let layer = Self { experts, hidden, intermediate, top_k, routing, gate, weight_on_input };
        layer.check()?;
        Ok(layer)
    }
}

/// Parses the part of a description between `top k` and the gate. Whether groups fit the experts is
/// for [`ExpertLayer::check`].
impl FromStr for Routing {
    type Err = ExpertLayerError;

    fn from_str(text: &str) -> Result<Self, ExpertLayerError> {
        let mut words = Words::new(text);
        let routing = words.routing()?;
        words.end("a word of the routing, in their order, or the end")?;
        Ok(routing)
    }
}

/// Parses the part of a description after the routing. Whether numbers are above 0 is for
/// [`ExpertLayer::check`].
impl FromStr for Gate {
    type Err = ExpertLayerError;

    fn from_str(text: &str) -> Result<Self, ExpertLayerError> {
        let mut words = Words::new(text);
        let gate = words.gate()?;
        words.end("the end")?;
        Ok(gate)
    }
}

/// What is left of a text: words, and commas, which are words too.
struct Words<'t> {
    text: &'t str,
    rest: &'t str,
}

impl<'t> Words<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, rest: text.trim_start() }
    }

    /// The next word; empty at the end.
    fn peek(&self) -> &'t str {
        let ends = |c: char| c == ',' || c.is_whitespace();
        match self.rest.find(ends) {
            Some(0) => &self.rest[..1],
            Some(end) => &self.rest[..end],
            None => self.rest,
        }
    }

    fn skip(&mut self) {
        self.rest = self.rest[self.peek().len()..].trim_start();
    }

    /// Takes several words if all of them are next.
    fn accept(&mut self, expected: &str) -> bool {
        let before = self.rest;
        for word in expected.split(' ') {
            if self.peek() != word {
                self.rest = before;
                return false;
            }
            self.skip();
        }
        true
    }

    fn expect(&mut self, expected: &str) -> Result<(), ExpertLayerError> {
        let mut words = expected.split(' ');
        match words.find(|word| !self.accept(word)) {
            Some(word) => Err(self.error(&format!("`{word}`"))),
            None => Ok(()),
        }
    }

    fn number<T: FromStr>(&mut self, expected: &str) -> Result<T, ExpertLayerError> {
        let number = self.peek().parse().map_err(|_| self.error(expected))?;
        self.skip();
        Ok(number)
    }

    fn end(&self, expected: &str) -> Result<(), ExpertLayerError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.error(expected)) }
    }

    fn error(&self, expected: &str) -> ExpertLayerError {
        let found = match self.peek() {
            "" => "the end".to_owned(),
            word => format!("`{word}`"),
        };
        let (text, expected) = (self.text.to_owned(), expected.to_owned());
        ExpertLayerError::Text { text, expected, found }
    }

    fn routing(&mut self) -> Result<Routing, ExpertLayerError> {
        let Some(score) = Score::ALL.into_iter().find(|score| self.accept(score.name())) else {
            let names = Score::ALL.map(|score| format!("`{}`", score.name()));
            return Err(self.error(&format!("a score ({})", names.join(", "))));
        };
        let mut routing = Routing::new(score);
        routing.bias = self.accept("with bias");
        if self.accept("in") {
            let keep = self.number("how many groups are kept")?;
            self.expect("of")?;
            let count = self.number("the number of groups")?;
            self.expect("groups")?;
            routing.groups = Some(ExpertGroups { count, keep });
        }
        routing.renormalise = self.accept("renormalised");
        if self.accept("times") {
            routing.scale = self.number("a scale")?;
        }
        Ok(routing)
    }

    fn gate(&mut self) -> Result<Gate, ExpertLayerError> {
        if self.accept("ungated") {
            let gates =
                [Gate::UngatedSilu, Gate::UngatedGelu, Gate::UngatedGeluTanh, Gate::UngatedRelu2];
            let found = gates.into_iter().find(|gate| self.accept(gate.name()));
            return found.ok_or_else(|| self.error("`silu`, `gelu`, `gelu_tanh` or `relu2`"));
        }
        if self.accept("silu limit") {
            return Ok(Gate::SiluLimit { limit: self.number("a limit")? });
        }
        if self.accept("swigluoai") {
            self.expect("alpha")?;
            let alpha = self.number("an alpha")?;
            self.expect("limit")?;
            return Ok(Gate::SwigluOai { alpha, limit: self.number("a limit")? });
        }
        if self.accept("swiglustep") {
            self.expect("limit")?;
            return Ok(Gate::SwigluStep { limit: self.number("a limit")? });
        }
        let gates = [Gate::Silu, Gate::Gelu, Gate::GeluTanh];
        let found = gates.into_iter().find(|gate| self.accept(gate.name()));
        found.ok_or_else(|| {
            self.error(
                "a gate (`silu`, `silu limit 7`, `swigluoai alpha 1.702 limit 7`, \
                 `swiglustep limit 7`, `gelu`, `gelu_tanh`, or `ungated` before `silu`, `gelu`, \
                 `gelu_tanh`, `relu2`)",
            )
        })
    }
}
