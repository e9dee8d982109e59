//! Collects the matrices of experts by their names, and checks that they belong together.

use std::collections::BTreeMap;

use quantloom_dsl::experts::{ExpertLayer, MOST_EXPERTS};

use super::super::models::{ExpertNames, FAMILIES};
use super::super::reals::float_format;
use super::super::{Checkpoint, Layer, Tensor, tensor_name};
use super::compare::{same_scheme, same_shape, stack_shape, stack_shards};
use super::float::FloatExperts;
use super::names::{STACKS, matrices, naming, of_expert};
use super::quantised::QuantisedExperts;
use super::{ExpertSizes, ExpertsProblem, StoredExperts};
use crate::experts::ExpertProduct;

/// The matrices of experts, by expert and name.
type Separate<'c, T> = BTreeMap<u32, BTreeMap<&'c str, T>>;

/// Experts of which the matrices are collected.
pub(super) struct Collector<'c, 'n> {
    pub(super) checkpoint: &'c Checkpoint,
    /// The prefix of the matrices' names.
    pub(super) name: &'n str,
    /// Whether the name is that of one expert, such as a shared one: its matrices are directly below.
    pub(super) single: bool,
    /// The description, if something describes the layer.
    pub(super) described: Option<ExpertLayer>,
    /// The names of the model's family.
    pub(super) family: Option<&'static ExpertNames>,
}

type Collected<'c> = Result<(ExpertSizes, StoredExperts<'c>), ExpertsProblem>;

impl<'c> Collector<'c, '_> {
    /// The sizes and the matrices; `None` if there is no matrix.
    pub(super) fn collect(&self) -> Option<Collected<'c>> {
        let layers = self.layers();
        if !layers.is_empty() {
            return Some(self.of_layers(&layers));
        }
        let floats = self.float_tensors();
        if !floats.is_empty() {
            return Some(self.of_floats(&floats));
        }
        STACKS.iter().find_map(|names| self.of_stacks(*names))
    }

    /// The name of a matrix.
    fn full(&self, expert: u32, matrix: &str) -> String {
        match self.single {
            true => tensor_name(self.name, matrix),
            false => tensor_name(&tensor_name(self.name, &expert.to_string()), matrix),
        }
    }

    /// The expert and the matrix of a name.
    fn part<'t>(&self, name: &'t str) -> Option<(u32, &'t str)> {
        if self.single {
            let (prefix, matrix) = name.rsplit_once('.')?;
            let known = FAMILIES.iter().any(|f| matrices(&f.names).any(|known| known == matrix));
            return Some((0, matrix)).filter(|_| known && prefix == self.name);
        }
        let (prefix, expert, matrix) = of_expert(name)?;
        Some((expert, matrix)).filter(|_| prefix == self.name)
    }

    /// The quantised matrices, which may be broken.
    fn layers(&self) -> Separate<'c, Result<&'c Layer, ExpertsProblem>> {
        let mut found: Separate<'c, _> = BTreeMap::new();
        for (name, layer) in self.checkpoint.recognised_below(self.name) {
            if let Some((expert, matrix)) = self.part(name) {
                let layer = layer.as_ref();
                let layer = layer.map_err(|error| ExpertsProblem::Broken(error.clone()));
                found.entry(expert).or_default().insert(matrix, layer);
            }
        }
        found
    }

    /// The matrices of floats.
    fn float_tensors(&self) -> Separate<'c, &'c Tensor> {
        let mut found: Separate<'c, _> = BTreeMap::new();
        for (name, tensor) in self.checkpoint.tensors.below(self.name) {
            let part = name.strip_suffix(".weight").and_then(|name| self.part(name));
            if let (Some((expert, matrix)), Some(_)) = (part, float_format(tensor.dtype())) {
                found.entry(expert).or_default().insert(matrix, tensor);
            }
        }
        found
    }

    /// The names of an expert's matrices, and E: that of the description, else what the names of the
    /// matrices say. Every expert below E has every matrix, and there are no others.
    fn complete<T>(
        &self,
        found: &Separate<'c, T>,
    ) -> Result<(&'static ExpertNames, u32), ExpertsProblem> {
        let all = || found.iter().flat_map(|(expert, of)| of.keys().map(|name| (*expert, *name)));
        let names = naming(self.family, |matrix| all().any(|(_, name)| name == matrix));
        let known = names.map_or(Vec::new(), |names| matrices(names).collect());
        let other = all().find(|(_, name)| !known.contains(name));
        let (Some(names), None) = (names, other) else {
            let (expert, name) = other.unwrap_or((0, ""));
            return Err(ExpertsProblem::OtherMatrix { matrix: self.full(expert, name), known });
        };
        let (last, of_last) = all().last().unwrap_or((0, ""));
        let experts = match (&self.described, self.single) {
            (_, true) => 1,
            (Some(layer), _) => layer.experts,
            (None, _) if last < MOST_EXPERTS => last + 1,
            (None, _) => return Err(ExpertsProblem::TooMany(self.full(last, of_last))),
        };
        if last >= experts {
            let matrix = self.full(last, of_last);
            return Err(ExpertsProblem::OneTooMany { matrix, experts });
        }
        for expert in 0..experts {
            let has = |matrix: &str| found.get(&expert).is_some_and(|of| of.contains_key(matrix));
            if let Some(matrix) = known.iter().find(|matrix| !has(matrix)) {
                let matrix = self.full(expert, matrix);
                return Err(ExpertsProblem::MissingMatrix { matrix, experts });
            }
        }
        Ok((names, experts))
    }

    /// The sizes of the description, else those of the tensors; its gate has as many shards as there
    /// are. `first` is N and K of the first shard.
    fn sizes(
        &self,
        experts: u32,
        shards: usize,
        first: [u64; 2],
    ) -> Result<ExpertSizes, ExpertsProblem> {
        let [intermediate, hidden] = first;
        let Some(layer) = self.described else {
            return Ok(ExpertSizes { experts, hidden, intermediate, shards });
        };
        if layer.gate.shards() != shards {
            let (gate, expected) = (layer.gate.to_string(), layer.gate.shards());
            return Err(ExpertsProblem::Gate { gate, expected, found: shards });
        }
        let ExpertLayer { experts, hidden, intermediate, .. } = layer;
        Ok(ExpertSizes { experts, hidden, intermediate, shards })
    }

    /// A layer of the checkpoint for each matrix.
    fn of_layers(&self, found: &Separate<'c, Result<&'c Layer, ExpertsProblem>>) -> Collected<'c> {
        let (names, experts) = self.complete(found)?;
        let matrix =
            |name: &'static str| move |of: &BTreeMap<&str, Result<&'c Layer, _>>| of[name].clone();
        let all = |name| found.values().map(matrix(name)).collect::<Result<Vec<_>, _>>();
        let shards = names.shards.iter().map(|name| all(name)).collect::<Result<Vec<_>, _>>()?;
        let down = all(names.down)?;
        let (first, first_down) = (shards[0][0], down[0]);
        let sizes = self.sizes(experts, shards.len(), [first.shape().n, first.shape().k])?;
        let products = [ExpertProduct::GateUp, ExpertProduct::Down];
        for expert in 0..experts {
            let at = expert as usize;
            let gate_up = shards.iter().map(|shard| (shard[at], first, products[0]));
            for (layer, first, product) in gate_up.chain([(down[at], first_down, products[1])]) {
                same_scheme(expert, layer, first)?;
                same_shape(expert, layer.name(), layer.shape(), sizes.matrix(product))?;
            }
        }
        let transposed = |at: usize| shards.iter().map(|shard| shard[at]).collect();
        let gate_up = (0..down.len()).map(transposed).collect();
        Ok((sizes, StoredExperts::Quantised(QuantisedExperts::separate(gate_up, down))))
    }

    /// A float tensor for each matrix.
    fn of_floats(&self, found: &Separate<'c, &'c Tensor>) -> Collected<'c> {
        let (names, experts) = self.complete(found)?;
        let dims = |name: &str, tensor: &Tensor| match *tensor.shape() {
            [n, k] => Ok([n as u64, k as u64]),
            ref other => Err(ExpertsProblem::Stack {
                matrix: name.to_owned(),
                found: other.iter().map(|size| *size as u64).collect(),
                expected: vec![0, 0],
            }),
        };
        let first = found[&0][names.shards[0]];
        let first = dims(&self.full(0, names.shards[0]), first)?;
        let sizes = self.sizes(experts, names.shards.len(), first)?;
        for (expert, of) in found {
            for name in matrices(names) {
                let product =
                    if name == names.down { ExpertProduct::Down } else { ExpertProduct::GateUp };
                let (full, expected) = (self.full(*expert, name), sizes.matrix(product));
                let found = dims(&full, of[name])?;
                if found != expected {
                    let matrix = full;
                    return Err(ExpertsProblem::Shape { expert: *expert, matrix, found, expected });
                }
            }
        }
        let of_expert = |of: &BTreeMap<&str, &'c Tensor>| {
            (names.shards.iter().map(|name| of[name]).collect(), of[names.down])
        };
        let experts = found.values().map(of_expert).collect();
        Ok((sizes, StoredExperts::Float(FloatExperts::separate(experts))))
    }

    /// A stack of all matrices of a product.
    fn of_stacks(&self, (first, second): (&str, &str)) -> Option<Collected<'c>> {
        let names = [tensor_name(self.name, first), tensor_name(self.name, second)];
        let layers = names.each_ref().map(|name| self.checkpoint.recognised(name));
        if layers.iter().any(Option::is_some) {
            let mut stacks = Vec::new();
            for (layer, name) in layers.into_iter().zip(names) {
                match layer {
                    Some(Ok(layer)) => stacks.push(layer),
                    Some(Err(error)) => return Some(Err(ExpertsProblem::Broken(error.clone()))),
                    None => return Some(Err(ExpertsProblem::MissingStack(name))),
                }
            }
            return Some(self.of_layer_stacks(stacks[0], stacks[1]));
        }
        let tensor = |name: &String| {
            let tensor = self.checkpoint.tensors.get(name)?;
            float_format(tensor.dtype()).map(|_| tensor)
        };
        match names.each_ref().map(tensor) {
            [Some(gate_up), Some(down)] => Some(self.of_float_stacks(&names, gate_up, down)),
            [None, None] => None,
            [None, _] => Some(Err(ExpertsProblem::MissingStack(names[0].clone()))),
            [_, None] => Some(Err(ExpertsProblem::MissingStack(names[1].clone()))),
        }
    }

    fn of_layer_stacks(&self, gate_up: &'c Layer, down: &'c Layer) -> Collected<'c> {
        let shards = stack_shards(gate_up, ExpertProduct::GateUp)?;
        stack_shards(down, ExpertProduct::Down)?;
        let shape = gate_up.shape();
        let experts = u32::try_from(shape.experts).unwrap_or(u32::MAX);
        if self.described.is_none() && !(1..=MOST_EXPERTS).contains(&experts) {
            return Err(ExpertsProblem::TooMany(gate_up.name().to_owned()));
        }
        let sizes = self.sizes(experts, shards, [shape.n / shards as u64, shape.k])?;
        stack_shape(gate_up, sizes, ExpertProduct::GateUp)?;
        stack_shape(down, sizes, ExpertProduct::Down)?;
        let stacks = QuantisedExperts::stacked(gate_up, down, sizes)?;
        Ok((sizes, StoredExperts::Quantised(stacks)))
    }

    fn of_float_stacks(
        &self,
        names: &[String; 2],
        gate_up: &'c Tensor,
        down: &'c Tensor,
    ) -> Collected<'c> {
        let stacked = self.family.map_or_else(Default::default, |names| names.stacked);
        let dims = |tensor: &Tensor| tensor.shape().iter().map(|size| *size as u64).collect();
        let (found, found_down): (Vec<u64>, Vec<u64>) = (dims(gate_up), dims(down));
        let sizes = match (found.as_slice(), stacked.transposed) {
            (&[experts, hidden, rows], true) | (&[experts, rows, hidden], false) => {
                let experts = u32::try_from(experts).unwrap_or(u32::MAX);
                if self.described.is_none() && !(1..=MOST_EXPERTS).contains(&experts) {
                    return Err(ExpertsProblem::TooMany(names[0].clone()));
                }
                self.sizes(experts, 2, [rows / 2, hidden])?
            }
            _ => self.sizes(1, 2, [0, 0])?,
        };
        let ExpertSizes { experts, hidden, intermediate, .. } = sizes;
        let expected = |[rows, columns]: [Option<u64>; 2]| {
            let dims = [Some(u64::from(experts)), rows, columns];
            let mut dims = dims.map(|dim| dim.unwrap_or(u64::MAX)).to_vec();
            if stacked.transposed {
                dims.swap(1, 2);
            }
            dims
        };
        let gate_up_dims = expected([intermediate.checked_mul(2), Some(hidden)]);
        let down_dims = expected([Some(hidden), Some(intermediate)]);
        let both = [(found, gate_up_dims), (found_down, down_dims)];
        for ((found, expected), name) in both.into_iter().zip(names) {
            if found != expected {
                return Err(ExpertsProblem::Stack { matrix: name.clone(), found, expected });
            }
        }
        let bias = |name: &String| {
            let name = name.strip_suffix("_weight").unwrap_or(name);
            let tensor = self.checkpoint.tensors.get(&format!("{name}_bias"))?;
            float_format(tensor.dtype()).map(|_| tensor)
        };
        let biases = names.each_ref().map(bias);
        let stacks = FloatExperts::stacked([gate_up, down], biases, stacked, sizes);
        Ok((sizes, StoredExperts::Float(stacks)))
    }
}
