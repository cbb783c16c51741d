//! Random things done to tasks with a keeper and without: in the end every task has the same mask.
//!
//! A script is drawn from a seed and played twice: once while keepers come, end and are killed, once without any. Each command
//! is answered before the next one is given, so both plays make the same tasks. In the end all cpusets are widened, and the
//! masks are compared once more: a request that the kernel remembers shows then.
//!
//! The gate plays one short script, always the same. The slow tier plays a long one, another one each time: NEARFAR_MODEL_SEED
//! plays one again, NEARFAR_MODEL_SECONDS plays scripts for so long, NEARFAR_MODEL_STEPS sets their length.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::support::{Cpuset, KeeperProcess, Tasks, can_observe, own};
use fastrand::Rng;

/// One command.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Step {
    Make {
        maker: usize,
        how: &'static str,
        made: usize,
    },
    Tell {
        task: usize,
        command: String,
    },
    Exec(usize),
    End(usize),
    /// Kills the process of this task.
    Kill(usize),
    /// Moves the process of this task to a cpuset, or to the root.
    Move(usize, Option<usize>),
    SetCpus(usize, &'static str),
    /// Keeps the processes of these tasks, the first process among them; none is kept so far.
    Keep(Vec<usize>),
    Stop,
    /// Kills the keeper; the next nearfar gives back.
    Lose,
}

fn one_of<T: Copy>(random: &mut Rng, choices: &[T]) -> T {
    choices[random.usize(..choices.len())]
}

/// Who there is after the steps so far, by number.
struct Writer {
    random: Rng,
    steps: Vec<Step>,
    /// The process of each task; a process is named by the number of a task that it began with.
    process: BTreeMap<usize, usize>,
    /// The first thread of each process, which a process cannot lose without ending its own proc files.
    first: BTreeMap<usize, usize>,
    pinned: BTreeSet<usize>,
    cpuset: BTreeMap<usize, usize>,
    made: usize,
    kept: bool,
    observed: bool,
    cpusets: usize,
}

const MOST_TASKS: usize = 200;

impl Writer {
    fn write(seed: u64, length: usize, observed: bool, cpusets: usize) -> Vec<Step> {
        let mut writer = Self {
            random: Rng::with_seed(seed),
            steps: Vec::new(),
            process: BTreeMap::from([(0, 0)]),
            first: BTreeMap::from([(0, 0)]),
            pinned: BTreeSet::new(),
            cpuset: BTreeMap::new(),
            made: 0,
            kept: false,
            observed,
            cpusets,
        };
        while writer.steps.len() < length {
            writer.step();
        }
        if writer.kept {
            writer.steps.push(Step::Stop);
        }
        writer.steps
    }

    fn any(&mut self) -> usize {
        let tasks: Vec<usize> = self.process.keys().copied().collect();
        one_of(&mut self.random, &tasks)
    }

    fn step(&mut self) {
        let task = self.any();
        match self.random.usize(..100) {
            0..40 => self.make(task),
            40..55 => self.pin(task),
            55..61 => {
                // 15 bytes at most count; a name has no NUL.
                let length = 1 + self.random.usize(..20);
                let mut name = String::new();
                (0..length)
                    .for_each(|_| write!(name, "{:02x}", 1 + self.random.usize(..255)).unwrap());
                self.steps.push(Step::Tell {
                    task,
                    command: format!("name {name}"),
                });
            }
            61..66 => self.exec(task),
            66..72 => self.end(task),
            72..75 => self.kill(task),
            75..83 if self.cpusets > 0 => self.move_to(task),
            83..88 if self.cpusets > 0 => self.set_cpus(),
            88..100 => self.keeper(),
            _ => {}
        }
    }

    fn make(&mut self, maker: usize) {
        if self.process.len() >= MOST_TASKS {
            return;
        }
        self.made += 1;
        let made = self.made;
        let how = match self.random.usize(..10) {
            0..6 => "thread",
            6..9 => "fork",
            // What left its session and its parent is found by observing alone.
            _ if self.observed => "daemon",
            _ => "fork",
        };
        let process = self.process[&maker];
        if how == "thread" {
            // Without observing, what a pinned thread among others made looks like what they made.
            if !self.observed && self.pinned.iter().any(|task| self.process[task] == process) {
                return;
            }
            self.process.insert(made, process);
        } else {
            self.process.insert(made, made);
            self.first.insert(made, made);
            if let Some(&cpuset) = self.cpuset.get(&process) {
                self.cpuset.insert(made, cpuset);
            }
        }
        if self.pinned.contains(&maker) {
            self.pinned.insert(made);
        }
        self.steps.push(Step::Make { maker, how, made });
    }

    fn pin(&mut self, task: usize) {
        // In a cpuset that allows fewer, what was asked for cannot be read, nor whether anything was.
        if self.cpuset.contains_key(&self.process[&task]) {
            return;
        }
        let mut cpus = one_of(&mut self.random, &["0", "0", "1", "0-1"]);
        // Without observing, a choice of exactly the node is not seen.
        if !self.observed && self.kept && cpus == "0" {
            cpus = "1";
        }
        if cpus == "0-1" && self.kept && !self.observed {
            return;
        }
        self.pinned.insert(task);
        self.steps.push(Step::Tell {
            task,
            command: format!("pin {cpus}"),
        });
    }

    fn exec(&mut self, task: usize) {
        let process = self.process[&task];
        // A daemon's or child's first thread may have ended; the kernel then keeps its number for this one.
        if !self.observed && self.first.get(&process) != Some(&task) {
            return;
        }
        self.process
            .retain(|&other, of| *of != process || other == task);
        self.first.insert(process, task);
        self.forget_ended();
        self.steps.push(Step::Exec(task));
    }

    fn end(&mut self, task: usize) {
        // The first task stays: keepers are given its process. So does each process's first thread.
        if self.first.values().any(|&first| first == task) {
            return;
        }
        self.process.remove(&task);
        self.forget_ended();
        self.steps.push(Step::End(task));
    }

    fn kill(&mut self, task: usize) {
        let process = self.process[&task];
        if process == 0 {
            return;
        }
        self.steps.push(Step::Kill(task));
        self.process.retain(|_, of| *of != process);
        self.first.remove(&process);
        self.cpuset.remove(&process);
        self.forget_ended();
    }

    fn forget_ended(&mut self) {
        let process = &self.process;
        self.pinned.retain(|task| process.contains_key(task));
    }

    fn move_to(&mut self, task: usize) {
        let process = self.process[&task];
        let to = self.random.usize(..self.cpusets + 1);
        let to = (to < self.cpusets).then_some(to);
        match to {
            // A pinned thread in a cpuset: what it asked for is hidden from a keeper that comes later.
            Some(_) if self.pinned.iter().any(|task| self.process[task] == process) => return,
            Some(cpuset) => drop(self.cpuset.insert(process, cpuset)),
            None => drop(self.cpuset.remove(&process)),
        }
        self.steps.push(Step::Move(task, to));
    }

    fn set_cpus(&mut self) {
        let cpuset = self.random.usize(..self.cpusets);
        let cpus = one_of(&mut self.random, &["0", "1", "0-1", "0-1"]);
        self.steps.push(Step::SetCpus(cpuset, cpus));
    }

    fn keeper(&mut self) {
        let step = match (self.kept, self.random.usize(..2)) {
            (false, _) => {
                let others: Vec<usize> = (0..self.random.usize(..3)).map(|_| self.any()).collect();
                Step::Keep(std::iter::once(self.first[&0]).chain(others).collect())
            }
            (true, 0) => Step::Stop,
            (true, _) => Step::Lose,
        };
        self.kept = !self.kept;
        self.steps.push(step);
    }
}

/// The masks of all tasks, in the end and after all cpusets were widened.
type Masks = BTreeMap<usize, [String; 2]>;

fn play(steps: &[Step], kept: bool, observed: bool, cpusets: &[Cpuset]) -> Masks {
    assert!(cpusets.iter().all(|cpuset| cpuset.set("0-1")));
    let mut tasks = Tasks::new();
    let mut keeper: Option<KeeperProcess> = None;
    for step in steps {
        match step {
            Step::Make { maker, how, made } => drop(tasks.make(*maker, how, *made)),
            Step::Tell { task, command } => drop(tasks.ask(*task, command)),
            Step::Exec(task) => drop(tasks.exec(*task)),
            Step::End(task) => tasks.end(*task),
            Step::Kill(task) => tasks.kill(tasks.tasks[task].pid),
            Step::Move(task, None) => cpusets[0].release(tasks.tasks[task].pid),
            Step::Move(task, Some(cpuset)) => cpusets[*cpuset].take(tasks.tasks[task].pid),
            Step::SetCpus(cpuset, cpus) => assert!(cpusets[*cpuset].set(cpus)),
            Step::Keep(others) if kept => {
                let pids: Vec<i32> = others.iter().map(|task| tasks.tasks[task].pid).collect();
                keeper = KeeperProcess::start(&tasks.state(), &pids, observed);
            }
            Step::Stop if kept => {
                if let Some(keeper) = keeper.take() {
                    keeper.stop();
                }
            }
            Step::Lose if kept => {
                if let Some(mut keeper) = keeper.take() {
                    // What was made since its last look has no record.
                    keeper.settle();
                    keeper.kill();
                    tasks.leases().recover().unwrap();
                }
            }
            Step::Keep(_) | Step::Stop | Step::Lose => {}
        }
    }
    let mut masks: Masks = tasks
        .tasks
        .iter()
        .map(|(&task, it)| (task, [it.mask().to_string(), String::new()]))
        .collect();
    assert!(cpusets.iter().all(|cpuset| cpuset.set("0-1")));
    for (task, it) in &tasks.tasks {
        masks.get_mut(task).unwrap()[1] = it.mask().to_string();
    }
    masks
}

#[test]
fn every_survivor_of_a_short_script_has_the_mask_that_it_has_without_a_keeper() {
    play_scripts(1, 100, Duration::ZERO);
}

/// In the slow tier: thousands of tasks come and go.
#[test]
fn every_survivor_of_long_scripts_has_the_mask_that_it_has_without_a_keeper() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().unwrap())
    };
    let time = number("NEARFAR_MODEL_SECONDS").map_or(Duration::ZERO, Duration::from_secs);
    let length = number("NEARFAR_MODEL_STEPS").unwrap_or(400) as usize;
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let seed = number("NEARFAR_MODEL_SEED").unwrap_or(now);
    play_scripts(seed, length, time);
}

/// Plays scripts from this seed on: one, or as many as begin within this time.
fn play_scripts(mut seed: u64, length: usize, time: Duration) {
    if own().is_none() {
        return;
    }
    let observed = can_observe();
    let cpusets: Vec<Cpuset> = ["model-a", "model-b"]
        .into_iter()
        .filter_map(Cpuset::new)
        .collect();
    let begun = Instant::now();
    let (mut scripts, mut survivors, mut commands) = (0_u64, 0, 0);
    loop {
        let steps = Writer::write(seed, length, observed, cpusets.len());
        let expected = play(&steps, false, observed, &cpusets);
        let kept = play(&steps, true, observed, &cpusets);
        let different: Vec<String> = expected
            .iter()
            .filter(|(task, masks)| kept.get(*task) != Some(masks))
            .map(|(task, masks)| {
                format!(
                    "task {task}: {masks:?} without a keeper, {:?} with one",
                    kept.get(task)
                )
            })
            .collect();
        if !different.is_empty() {
            let script: Vec<String> = steps.iter().map(|step| format!("{step:?}")).collect();
            let _ = std::fs::write(
                std::env::temp_dir().join("nearfar-model-script"),
                script.join("\n"),
            );
            panic!(
                "NEARFAR_MODEL_SEED={seed} NEARFAR_MODEL_STEPS={length}:\n{}",
                different.join("\n")
            );
        }
        (scripts, survivors, commands) =
            (scripts + 1, survivors + kept.len(), commands + steps.len());
        seed = seed.wrapping_add(1);
        if begun.elapsed() >= time {
            break;
        }
    }
    println!(
        "{scripts} scripts of {length} commands, the last with seed {}: {survivors} survivors, {commands} commands, {:.0} s, observed: {observed}, cpusets: {}",
        seed.wrapping_sub(1),
        begun.elapsed().as_secs_f64(),
        cpusets.len()
    );
}
