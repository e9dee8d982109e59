use quantloom_codegen::plan::plan;
use quantloom_codegen::schedule::Problem;
use quantloom_codegen::target::target;
use quantloom_dsl::layout::Component;
fn main() {
    let t = target("sm_90a").unwrap();
    let mut files: Vec<_> = std::fs::read_dir("kernels-generated/schemes").unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    for f in &files { let text = std::fs::read_to_string(f).unwrap(); let s = &match quantloom_dsl::parse(&text) { Ok(s) => s, Err(e) => { println!("{f:?} {e:?}"); continue } };
        for a in s.activations.iter() {
            let act = match a { quantloom_dsl::Activation::Float(n) => n.to_string(), quantloom_dsl::Activation::Quantised(q) => format!("q {}", q.code) };
            match plan(s, a, t) {
                Ok(p) => {
                    println!("{} [{act}] {} <- {} yields {:?} | {} | rows {} cols {}", s.name, p.compute.product.name, p.dequant, p.dequant.yields(), p.native.layout.display(Component::Code), p.native.rows, p.native.columns);
                    println!("     levels {:?} input {:?} run {:?} corrects {} {} exp {} sort {}", p.scale.levels.iter().map(|l| format!("{:?}{}", l.place, if l.divide {"/"} else {""})).collect::<Vec<_>>(), p.scale.input.iter().map(|l| format!("{:?}{}", l.place, if l.divide {"/"} else {""})).collect::<Vec<_>>(), p.scale.run, p.scale.corrects, p.scale.corrects_by_group, p.scale.exponent, p.scale.sorts_columns);
                    if let Err(e) = Problem::new(s, a, t, (4096, 4096)) { println!("     UNSCHEDULED {e}"); }
                }
                Err(e) => println!("{} [{act}] NO PLAN {e}", s.name),
            }
        }
    }
}
