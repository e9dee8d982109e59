//! A product of an expert layer with random weights, tokens and experts: what its kernels get and give on
//! the simulator, laid out by hand here, and what they should give.

use quantloom_codegen::ir::{Kernel, Verified, verify};
use quantloom_codegen::jit::{Jit, JitWithOverrides, launch_rule};
use quantloom_codegen::schedule::experts::{GateProblem, activate};
use quantloom_codegen::schedule::{Chosen, Problem, Stack};
use quantloom_codegen::sim::{Arguments, Contents, Report, SimulationOptions, run};
use quantloom_codegen::target::target;
use quantloom_dsl::experts::{ExpertProduct, Gate, OperandOf};
use quantloom_dsl::format::{BF16, F32, FloatFormat, NUMBER_F32, Number, Overflow};
use quantloom_dsl::layout::Shape;
use quantloom_dsl::reference::PlainCodes;
use quantloom_dsl::{Activation, Scheme, parse};
use quantloom_runtime::gpu::{Products as _, Request, Stacked};
use quantloom_runtime::pack::pack;
use quantloom_runtime::source::{BufferRole, Count, KernelKey, ParameterKind, ProblemSize};
use quantloom_runtime::unpacked::Unpacked;
use quantloom_tools::conformance::{Expectation, draw, expectations};

use super::product::Random;

/// Per matrix: words of y, and what is expected of each.
type Singles = (Vec<Vec<u32>>, Vec<Vec<Expectation>>);

/// The pair of a slot without one.
const NONE: u32 = u32::MAX;
/// The expert of a token block that is not in use, and the pairs of its slots: no such expert nor pair.
const UNUSED: u32 = 0x00ff_ffff;
/// The bits of a word that no kernel has written: those of [`Contents::poison`].
const UNWRITTEN: u32 = 0xcdcd_cdcd;

/// Which experts the pairs have.
#[derive(Clone, Copy, Debug)]
pub enum Routing {
    /// Random ones; one pair in six has none, and expert 1 never has a pair.
    Random,
    /// The last expert.
    One,
    /// None.
    Nowhere,
}

/// The scheme of a name and clauses.
pub fn scheme((name, clauses): (&str, &str)) -> Scheme {
    parse(&format!("{name} {{ {clauses} }}")).unwrap_or_else(|faults| panic!("{name}: {faults:?}"))
}

/// A product of a layer of so many experts, top k, with a row of x for each pair's token or pair.
pub const fn stack(product: ExpertProduct, experts: u32, top_k: u32) -> Stack {
    let shards = match product {
        ExpertProduct::GateUp => 2,
        ExpertProduct::Down => 1,
    };
    Stack {
        product,
        experts,
        chosen_from: experts,
        shards,
        top_k,
        gate: None,
        direct: false,
        weighted: false,
        combined: false,
        shared: None,
        operand: OperandOf::Row,
    }
}

/// What the runtime asks for a stack, whose order has so many slots a token block if there is one, and whose y is of a type.
pub fn asked(stack: Stack, slots: Option<u64>, output: FloatFormat) -> Stacked {
    let Stack { product, experts, chosen_from, shards, top_k, gate, direct, .. } = stack;
    let Stack { weighted, combined, shared, operand, .. } = stack;
    Stacked {
        product,
        experts: experts.into(),
        chosen_from: chosen_from.into(),
        shards: shards.into(),
        top_k: top_k.into(),
        slots,
        gate,
        output,
        direct,
        weighted,
        combined,
        shared,
        operand,
    }
}

/// A buffer of a kernel, by its role.
pub type Bound = (BufferRole, Contents);

/// A product of random numbers with stacked experts.
pub struct RandomStack {
    scheme: Scheme,
    activation: Activation,
    pub own: FloatFormat,
    pub problem: Problem,
    stack: Stack,
    tokens: usize,
    /// Per pair.
    experts: Vec<Option<u32>>,
    /// Per expert and shard.
    plain: Vec<PlainCodes>,
    /// The constant buffers of each matrix, and of all.
    native: Vec<Vec<(BufferRole, Vec<u8>)>>,
    /// A row per token, or per pair in the second product.
    x: Vec<f64>,
    /// What the product reads of those rows.
    operand: Vec<(BufferRole, Vec<u8>)>,
}

impl RandomStack {
    /// Draws a layer; `None` if no schedule multiplies it.
    pub fn draw(
        scheme: &Scheme,
        sm: &'static str,
        (n, k): (u32, u32),
        stack: Stack,
        (tokens, routing): (usize, Routing),
        seed: u64,
    ) -> Option<Self> {
        let activation = scheme.activations[0].clone();
        let dense = Problem::new(scheme, &activation, target(sm)?, (n, k)).ok()?;
        let problem = dense.giving(NUMBER_F32).unwrap().stacked(stack).unwrap();
        let own = match activation {
            Activation::Float(Number::Float(own)) => own,
            _ => BF16,
        };
        let shape = Shape::matrix(n.into(), k.into());
        let request = Request::new(scheme, &activation, own, sm, [n.into(), k.into()]);
        assert!(Jit.arrangement(&request).unwrap().is_none(), "columns in another order");
        let plain: Vec<PlainCodes> = (0..stack.matrices())
            .map(|at| draw::layer(scheme, shape, 6 * (seed + u64::from(at))))
            .collect();
        let native = plain.iter().map(|plain| {
            let packed = pack(scheme, plain).unwrap();
            let stored = |name: &str| packed.get(name).map(Vec::as_slice);
            let unpacked = Unpacked::new(scheme, shape, &stored).unwrap();
            let parts = Jit.native(&request).unwrap().into_iter();
            parts.map(|part| (part.role, part.pack(&unpacked, None).unwrap())).collect()
        });
        let native = native.collect();
        let mut random = Random(seed);
        let pairs = tokens * stack.top_k as usize;
        let experts = (0..pairs).map(|_| match routing {
            Routing::Random => {
                let expert = random.next() as u32 % stack.experts;
                (!random.next().is_multiple_of(6) && expert != 1).then_some(expert)
            }
            Routing::One => Some(stack.experts - 1),
            Routing::Nowhere => None,
        });
        let experts = experts.collect();
        let rows = match stack.product {
            ExpertProduct::GateUp => tokens,
            ExpertProduct::Down => pairs,
        };
        let x = draw::tokens(scheme, own, rows, k as usize, seed);
        let operand = operand((&request, None), &x, rows);
        let scheme = scheme.clone();
        Some(Self {
            scheme,
            activation,
            own,
            problem,
            stack,
            tokens,
            experts,
            plain,
            native,
            x,
            operand,
        })
    }

    /// The same whose x is as a kernel reads it.
    pub fn read_by(self, kernel: &KernelKey) -> Self {
        let operand = operand((&self.request(), Some(kernel)), &self.x, self.rows());
        Self { operand, ..self }
    }

    /// The same whose x is 1 in e4m3, with scales of 1, as warp groups read it.
    pub fn of_ones(self) -> Self {
        let own = self.problem.of_warp_groups();
        // Scales are in tiles of 32 tokens.
        let rows = self.rows().next_multiple_of(32);
        let groups = own.input.groups().unwrap_or(1) as usize;
        let x = vec![0x38; self.rows() * own.input.columns as usize];
        let scales = 1f32.to_bits().to_le_bytes().repeat(rows * groups);
        let operand = vec![(BufferRole::X, x), (BufferRole::OperandScale, scales)];
        Self { operand, ..self }
    }

    fn rows(&self) -> usize {
        self.x.len() / self.problem.k as usize
    }

    /// The kernel of a choice, for the stack or for a single matrix.
    pub fn kernel(&self, chosen: Chosen, problem: &Problem) -> Verified<Kernel> {
        let kernel = chosen.write(problem);
        let kernel = kernel.unwrap_or_else(|why| panic!("{}: {why}", self.scheme.name));
        verify(kernel).unwrap_or_else(|refusals| panic!("{}: {refusals}", self.scheme.name))
    }

    /// Pairs by slot, sorted by expert, and the words of the order.
    fn order(&self, slots: usize) -> (Vec<u32>, Vec<u32>) {
        let pairs = self.experts.len();
        let count = Count::token_blocks(self.stack.experts.into(), slots as u64);
        let blocks = count.of(&self.sizes()).unwrap() as usize;
        let (mut of_blocks, mut of_slots) = (Vec::new(), Vec::new());
        for expert in 0..self.stack.experts {
            let own = (0..pairs).filter(|pair| self.experts[*pair] == Some(expert));
            let own: Vec<u32> = own.map(|pair| pair as u32).collect();
            for block in own.chunks(slots) {
                of_blocks.push(expert);
                of_slots.extend(block);
                of_slots.resize(of_blocks.len() * slots, NONE);
            }
        }
        let used = of_blocks.len() as u32;
        assert!(used as usize <= blocks, "{used} of {blocks} token blocks");
        // Of token blocks that are not in use nothing may be read: an expert that does not exist, and
        // pairs that do not.
        of_blocks.resize(blocks, UNUSED);
        of_slots.resize(blocks * slots, UNUSED);
        let slot_of = |pair: u32| of_slots.iter().position(|own| *own == pair);
        let mut words = vec![used];
        words.extend(&of_blocks);
        words.extend(&of_slots);
        words.extend((0..pairs as u32).map(|pair| slot_of(pair).map_or(NONE, |at| at as u32)));
        words.extend((0..blocks * slots).map(|slot| (1.0 + slot as f32 / 8.0).to_bits()));
        (of_slots, words)
    }

    fn sizes(&self) -> ProblemSize {
        let (n, k) = (self.problem.n.into(), self.problem.k.into());
        let (experts, routed_rows) = (self.stack.experts.into(), self.experts.len() as u64);
        ProblemSize { experts, routed_rows, ..ProblemSize::new(self.tokens as u64, n, k, 132) }
    }

    /// y of a kernel of the stack, and the pairs of its slots.
    ///
    /// # Errors
    /// The simulator's fault.
    pub fn run(&self, kernel: &Verified<Kernel>, slots: u32, seed: u64) -> Result<Run, String> {
        Ok(self.run_all(kernel, slots, seed)?.0)
    }

    /// The same, and all buffers of the kernel.
    ///
    /// # Errors
    /// The simulator's fault.
    pub fn run_all(
        &self,
        kernel: &Verified<Kernel>,
        slots: u32,
        seed: u64,
    ) -> Result<(Run, Vec<Bound>), String> {
        let direct = kernel.buffers.iter().any(|buffer| buffer.role == Some(BufferRole::Ids));
        let (of_slots, order) = match direct {
            true => self.ids(),
            false => self.order(slots as usize),
        };
        let order = Contents::from_words(&order);
        let role = if direct { BufferRole::Ids } else { BufferRole::Order };
        let weights: Vec<u32> = match direct {
            // Of a pair without an expert the weight may be anything.
            true => {
                let weight = |(pair, slot): (usize, &u32)| match *slot {
                    NONE => f32::NAN,
                    _ => 2.0 - pair as f32 / 16.0,
                };
                of_slots.iter().enumerate().map(|of| weight(of).to_bits()).collect()
            }
            false => order.words().split_off(order.words().len() - of_slots.len()),
        };
        let mut given = vec![
            (role, order.clone()),
            (BufferRole::RouterWeights, Contents::from_words(&weights)),
        ];
        for (at, (role, _)) in self.native[0].iter().enumerate() {
            let all = self.native.iter().flat_map(|matrix| matrix[at].1.iter().copied());
            given.push((*role, Contents::from_bytes(all.collect())));
        }
        for (role, bytes) in &self.operand {
            let row = bytes.len() / self.rows();
            let contents = match self.stack.product {
                ExpertProduct::GateUp => Contents::from_bytes(bytes.clone()),
                // Rows of slots; those of slots without a pair were never written. Tensor copies read all of a
                // token block, which in a layer are 0. Kernels that guess a pair's expert read the row before they
                // know that the expert is elsewhere: such rows are written too, and NaN shows who uses them.
                ExpertProduct::Down => {
                    let copied = kernel.tensors.iter().any(|map| map.name == "x_map");
                    let mut contents = match kernel.to_string().contains(" = guess ") {
                        true => Contents::from_bytes(vec![0xff; row * of_slots.len()]),
                        false => Contents::poison(row * of_slots.len()),
                    };
                    let used = order.words()[0] * slots;
                    if copied {
                        contents.set(0, &vec![0; row * used as usize]);
                    }
                    for (slot, pair) in of_slots.iter().enumerate() {
                        if let Some(own) = bytes.chunks(row).nth(*pair as usize) {
                            contents.set(slot * row, own);
                        }
                    }
                    contents
                }
            };
            given.push((*role, contents));
        }
        let shared = kernel.buffers.iter().find(|buffer| buffer.role == Some(BufferRole::Shared));
        if let Some(buffer) = shared {
            let own = if buffer.word.bytes() == 4 { F32 } else { self.own };
            given.push((BufferRole::Shared, Contents::from_bytes(self.shared(own).1)));
        }
        let (y, all, report) = launch(kernel, &self.sizes(), given, seed)?;
        Ok((Run { y, of_slots, order, weights, report }, all))
    }

    /// The buffers after a kernel of the second product's operand, whose x is y of this product, one row a slot.
    ///
    /// # Errors
    /// The simulator's fault.
    pub fn operand_of(&self, kernel: &Verified<Kernel>, h: &Run) -> Result<Vec<Bound>, String> {
        let given = vec![(BufferRole::Order, h.order.clone()), (BufferRole::X, h.y.clone())];
        let sizes = ProblemSize { m: h.of_slots.len() as u64, ..self.sizes() };
        Ok(launch_all(kernel, &sizes, given, 0)?.0)
    }

    /// Pairs by slot, and the ids of pairs, where each pair is a token block.
    fn ids(&self) -> (Vec<u32>, Vec<u32>) {
        let slot = |(pair, expert): (usize, &Option<u32>)| expert.map_or(NONE, |_| pair as u32);
        let slots = self.experts.iter().enumerate().map(slot).collect();
        // Below 0, and beyond the experts that are here.
        let absent = |pair: usize| if pair.is_multiple_of(2) { NONE } else { self.stack.experts };
        let id = |(pair, expert): (usize, &Option<u32>)| expert.unwrap_or(absent(pair));
        (slots, self.experts.iter().enumerate().map(id).collect())
    }

    /// h by the kernel of a gate of its own, from y of the first product.
    ///
    /// # Errors
    /// The simulator's fault.
    pub fn gated(&self, z: Run, gate: Gate, slots: u32) -> Result<Contents, String> {
        let kernel = activate(&GateProblem {
            target: self.problem.target(),
            gate,
            own: self.own,
            intermediate: self.problem.n,
            local: self.stack.experts,
            slots,
        });
        let kernel = verify(kernel).map_err(|refusals| refusals.to_string())?;
        // The kernel of the order says so of all slots, also of token blocks that are not in use.
        let empty = |word: &u32| if *word == UNUSED { NONE } else { *word };
        let order: Vec<u32> = z.order.words().iter().map(empty).collect();
        let order = Contents::from_words(&order);
        let given = vec![(BufferRole::Order, order), (BufferRole::Summed, z.y)];
        let (all, _) = launch_all(&kernel, &self.sizes(), given, 0)?;
        let h = all.into_iter().find(|(role, _)| *role == BufferRole::Hidden);
        Ok(h.unwrap().1)
    }

    /// The same product with rows of y that are multiplied by router weights.
    pub fn weighted(&self, direct: bool) -> Problem {
        let stack = Stack { direct, weighted: true, ..self.stack };
        self.problem.clone().stacked(stack).unwrap()
    }

    /// The same with rows in the 16-bit type of x.
    pub fn rounded(&self, direct: bool) -> Problem {
        self.weighted(direct).giving(Number::Float(self.own)).unwrap()
    }

    /// The bytes of rows in the 16-bit type of x, of words in f32; words that are not written stay so.
    pub fn as_rounded(&self, words: &[u32]) -> Vec<u8> {
        let round = |word: u32| match word {
            UNWRITTEN => UNWRITTEN as u16,
            word => {
                let value = f64::from(f32::from_bits(word));
                Number::Float(self.own).encode(value, Overflow::Special) as u16
            }
        };
        words.iter().flat_map(|word| round(*word).to_le_bytes()).collect()
    }

    /// The words of y without weights times the weights of a run.
    pub fn with_weights(&self, plain: &Run, run: &Run) -> Vec<u32> {
        let n = self.problem.n as usize;
        let weight = |pair: usize| {
            let slot = run.of_slots.iter().position(|own| *own as usize == pair)?;
            Some(f32::from_bits(run.weights[slot]))
        };
        let words = plain.y.words().into_iter().enumerate();
        let times = |(at, word): (usize, u32)| match weight(at / n) {
            Some(weight) => (f32::from_bits(word) * weight).to_bits(),
            None => word,
        };
        words.map(times).collect()
    }

    /// The same product without an order of pairs, with rows of y that are sums of a token's experts, weighted or not, in
    /// f32 or in the 16-bit type of x, and of [`Self::shared`] of a type.
    pub fn combined(&self, weighted: bool, rounded: bool, shared: Option<FloatFormat>) -> Problem {
        let output = if rounded { Number::Float(self.own) } else { NUMBER_F32 };
        let problem = self.problem.clone().giving(output).unwrap();
        let stack = Stack { direct: true, weighted, combined: true, shared, ..self.stack };
        problem.stacked(stack).unwrap()
    }

    /// What shared experts give, as numbers and as bytes of a type.
    fn shared(&self, own: FloatFormat) -> (Vec<f32>, Vec<u8>) {
        let (count, width) = (self.tokens * self.problem.n as usize, own.bits() as usize / 8);
        let values = (0..count).map(|at| 1.5 - (at % 7) as f32);
        let encoded = |value: f32| {
            let code = Number::Float(own).encode(f64::from(value), Overflow::Special);
            code.to_le_bytes().into_iter().take(width)
        };
        (values.clone().collect(), values.flat_map(encoded).collect())
    }

    /// The words of such rows in f32, from those of pairs and the weights of a run, and shared experts if there are any.
    pub fn sums_of_pairs(
        &self,
        plain: &Run,
        run: &Run,
        weighted: bool,
        shared: Option<FloatFormat>,
    ) -> Vec<u32> {
        let shared = shared.map(|own| self.shared(own).0);
        let (n, top_k) = (self.problem.n as usize, self.stack.top_k as usize);
        let parts = plain.y.words();
        let sum = |(token, column): (usize, usize)| {
            let pairs =
                (token * top_k..(token + 1) * top_k).filter(|pair| self.experts[*pair].is_some());
            let sum = pairs.fold(0.0f32, |sum, pair| {
                let weight = if weighted { f32::from_bits(run.weights[pair]) } else { 1.0 };
                weight.mul_add(f32::from_bits(parts[pair * n + column]), sum)
            });
            shared.as_ref().map_or(sum, |shared| sum + shared[token * n + column]).to_bits()
        };
        let rows = (0..self.tokens).flat_map(|token| (0..n).map(move |column| (token, column)));
        rows.map(sum).collect()
    }

    /// The same product with a gate, whose y is of the type of x; and without an order of pairs.
    pub fn of_stack(&self, gate: Option<Gate>, direct: bool) -> Problem {
        let output = if gate.is_some() { Number::Float(self.own) } else { NUMBER_F32 };
        let problem = self.problem.clone().giving(output).unwrap();
        problem.stacked(Stack { gate, direct, ..self.stack }).unwrap()
    }

    /// The first row of a stacked y that is not what it should be. A row of a pair with an expert has the
    /// bits that the same choice gives with that expert's matrix alone, and is within the bound of the
    /// exact product; every other row is not written.
    ///
    /// # Errors
    /// That row.
    pub fn compare(&self, chosen: Chosen, run: &Run) -> Result<(), String> {
        let (y, of_slots) = (&run.y.words()[..], &run.of_slots);
        let (n, shards) = (self.problem.n as usize, self.stack.shards as usize);
        let (singles, exact) = self.singles(chosen)?;
        let row_of_x = |pair: usize| match self.stack.product {
            ExpertProduct::GateUp => pair / self.stack.top_k as usize,
            ExpertProduct::Down => pair,
        };
        // Per row of y, its matrix and row of x.
        let of_pair = |pair: u32, shard: usize| {
            let expert = (*self.experts.get(pair as usize)?)? as usize;
            Some((expert * shards + shard, row_of_x(pair as usize)))
        };
        let rows: Vec<Option<(usize, usize)>> = match self.stack.product {
            ExpertProduct::GateUp => (0..shards)
                .flat_map(|shard| of_slots.iter().map(move |pair| of_pair(*pair, shard)))
                .collect(),
            ExpertProduct::Down => {
                (0..self.experts.len() as u32).map(|pair| of_pair(pair, 0)).collect()
            }
        };
        assert_eq!(y.len(), rows.len() * n);
        for (at, (row, found)) in rows.iter().zip(y.chunks(n)).enumerate() {
            let Some((matrix, x)) = *row else {
                match found.iter().position(|word| *word != UNWRITTEN) {
                    None => continue,
                    Some(column) => return Err(format!("y[{at}, {column}] is written")),
                }
            };
            let single = &singles[matrix][x * n..(x + 1) * n];
            let exact = &exact[matrix][x * n..(x + 1) * n];
            for (column, ((found, single), exact)) in
                found.iter().zip(single).zip(exact).enumerate()
            {
                let (value, other) = (f32::from_bits(*found), f32::from_bits(*single));
                if found != single {
                    return Err(format!("y[{at}, {column}] = {value}, alone {other}"));
                }
                if !exact.allows(f64::from(value)) {
                    return Err(format!("y[{at}, {column}] = {value}, expected {exact:?}"));
                }
            }
        }
        Ok(())
    }

    /// Per matrix, its y of all rows of x by the same choice, and the exact one.
    fn singles(&self, chosen: Chosen) -> Result<Singles, String> {
        // A single matrix has no pairs.
        let choices = chosen.parameters().into_iter().filter(|(name, _)| *name != "groups_pairs");
        let choices = choices.map(|(name, number)| (name.to_owned(), number)).collect();
        let chosen = Chosen::read(chosen.name(), &choices).unwrap();
        let single = self.problem.single();
        let kernel = self.kernel(chosen, &single);
        let at_once = chosen.schedule().block_tokens() as usize;
        let request = self.request();
        let choice = match chosen {
            // Whether weights are rounded is the tile's choice.
            Chosen::WarpGroup(_) => {
                let name = chosen.name();
                let choices = chosen.parameters().into_iter();
                let choices: Vec<String> = choices.map(|(name, n)| format!("{name}={n}")).collect();
                let text = format!("use {name}; {name}({})", choices.join(", "));
                JitWithOverrides::new(text.parse().unwrap()).choose(&request, at_once as u64)
            }
            _ => Jit.choose(&request, at_once as u64),
        };
        let choice = choice.unwrap();
        let worth = Jit.rounds_x(&request).unwrap();
        let mut all = (Vec::new(), Vec::new());
        for (plain, native) in self.plain.iter().zip(&self.native) {
            let mut y = Vec::new();
            for first in (0..self.rows()).step_by(at_once) {
                let count = at_once.min(self.rows() - first);
                let mut given: Vec<Bound> = Vec::new();
                for (role, bytes) in &self.operand {
                    let row = bytes.len() / self.rows();
                    let own = &bytes[first * row..(first + count) * row];
                    given.push((*role, Contents::from_bytes(own.to_vec())));
                }
                let constants =
                    native.iter().map(|(role, bytes)| (*role, Contents::from_bytes(bytes.clone())));
                given.extend(constants);
                let sizes = ProblemSize::new(
                    count as u64,
                    request.n,
                    request.k,
                    self.sizes().multiprocessors,
                );
                y.extend(launch(&kernel, &sizes, given, 0)?.0.words());
            }
            all.0.push(y);
            let kernel = (choice.sums, choice.decoded);
            let exact = expectations(&self.scheme, plain, &self.x, (self.own, worth), kernel, F32);
            all.1.push(exact.unwrap());
        }
        Ok(all)
    }

    /// What is asked of the compiler for one matrix.
    pub fn request(&self) -> Request<'_> {
        Request::new(
            &self.scheme,
            &self.activation,
            self.own,
            self.problem.target().name,
            [self.problem.n.into(), self.problem.k.into()],
        )
    }
}

/// What the product reads of x: x, or what its kernels make of it.
fn operand(
    (request, kernel): (&Request<'_>, Option<&KernelKey>),
    x: &[f64],
    rows: usize,
) -> Vec<(BufferRole, Vec<u8>)> {
    let number = Number::Float(request.input_dtype);
    let bytes = request.input_dtype.bits() as usize / 8;
    let words = x.iter().map(|x| number.encode(*x, Overflow::Special));
    let x: Vec<u8> = words.flat_map(|word| word.to_le_bytes()[..bytes].to_vec()).collect();
    let mut known = vec![(BufferRole::X, Contents::from_bytes(x))];
    let sizes = ProblemSize::new(rows as u64, request.n, request.x_columns, 132);
    for key in Jit.operand(request, kernel).unwrap() {
        let kernel = Jit.kernel(&key).unwrap();
        let all = launch_all(&kernel, &sizes, known, 0).unwrap().0;
        known = all;
    }
    let whole = |role| known.iter().find(|(own, _)| *own == role).map(|(_, bytes)| bytes.clone());
    let x = whole(BufferRole::Operand).or_else(|| whole(BufferRole::X)).unwrap();
    let scales = whole(BufferRole::OperandScale).map(|scales| (BufferRole::OperandScale, scales));
    let all = [(BufferRole::X, x)].into_iter().chain(scales);
    all.map(|(role, contents)| (role, contents.bytes)).collect()
}

/// What a kernel of the stack gave.
pub struct Run {
    pub y: Contents,
    /// The pair of each slot.
    pub of_slots: Vec<u32>,
    /// The order, or the ids.
    order: Contents,
    /// The router weight of each slot, f32.
    weights: Vec<u32>,
    pub report: Report,
}

/// Runs a kernel, and gives y and all buffers.
fn launch(
    kernel: &Verified<Kernel>,
    sizes: &ProblemSize,
    given: Vec<Bound>,
    seed: u64,
) -> Result<(Contents, Vec<Bound>, Report), String> {
    let (all, report) = launch_all(kernel, sizes, given, seed)?;
    let y = all.iter().find(|(role, _)| *role == BufferRole::Y);
    let y = y.map(|(_, contents)| contents.clone()).unwrap_or_default();
    let counters = all.iter().find(|(role, _)| *role == BufferRole::Arrivals);
    if counters.is_some_and(|(_, left)| left.bytes.iter().any(|byte| *byte != 0)) {
        return Err("the count of arrivals is not 0 afterwards".to_owned());
    }
    Ok((y, all, report))
}

/// Runs a kernel by its launch rule, and gives all buffers back.
fn launch_all(
    kernel: &Verified<Kernel>,
    sizes: &ProblemSize,
    mut given: Vec<Bound>,
    seed: u64,
) -> Result<(Vec<Bound>, Report), String> {
    let rule = launch_rule(kernel).unwrap();
    let (mut parameters, mut roles, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
    for parameter in &rule.parameters {
        match &parameter.kind {
            ParameterKind::Size(count) => parameters.push(count.of(sizes).unwrap() as u32),
            ParameterKind::Buffer { bytes, role, .. } => {
                let (role, bytes) = (role.unwrap(), bytes.of(sizes).unwrap() as usize);
                let known = given.iter().position(|(own, _)| *own == role);
                roles.push(role);
                buffers.push(match (known, role) {
                    (Some(at), _) => given.swap_remove(at).1,
                    (None, BufferRole::Arrivals) => Contents::from_bytes(vec![0; bytes]),
                    (None, _) => Contents::poison(bytes),
                });
            }
            // The simulator has the kernel's maps.
            ParameterKind::TensorMap(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let mut arguments = Arguments { parameters, buffers };
    let options = SimulationOptions { seed, limit: 1 << 24, ..SimulationOptions::default() };
    let report = run(kernel, &mut arguments, &options).map_err(|fault| fault.to_string())?;
    given.extend(roles.into_iter().zip(arguments.buffers));
    Ok((given, report))
}
