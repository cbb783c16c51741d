//! Moving a process's memory as one change of a change set.

use nearfar_proc::error_text;
use nearfar_proc::resident::Walk;

use crate::apply::{ApplyError, Carrying, begin};
use crate::change::{Change, Planned, memory_by_node};
use crate::journal::{Intent, Progress, Record, Written};
use crate::kind::Setting;
use crate::outcome::Applied;
use crate::system::{System, first_line};
use crate::task_memory::{
    HeldProcess, LivePages, MoveConditions, MoveProgress, MoveRequest, Mover, RateLimit,
    RecordFile, RecordHeader, State, StopReason, after, check, file_of, refused,
};

/// Of a transparent huge page, where the kernel does not say: as on x86-64.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

impl Carrying<'_> {
    /// Moves the pages. An error only where nothing at all was written yet.
    pub(crate) fn move_memory(
        &mut self,
        planned: &Planned,
        request: &MoveRequest,
        index: u64,
    ) -> Result<Applied, ApplyError> {
        let left = |reason: String| Ok(Applied::LeftAlone { reason });
        if self.tree {
            return left("a directory tree has no processes".to_owned());
        }
        let Some(identity) = planned.owner.as_ref().and_then(|it| it.process.as_ref()) else {
            return left("the plan does not say when the process began".to_owned());
        };
        let process = match HeldProcess::open(request.pid, identity.start_ticks) {
            Ok(process) => process,
            Err(error) if error.is_end() && self.moves_several() => {
                let reason = error.to_string();
                return Ok(Applied::ProcessGone { reason });
            }
            Err(error) => return left(error.to_string()),
        };
        let survey = match MoveConditions::read(self.system, request) {
            Ok(conditions) if !conditions.survey.has_far() => {
                let now = memory_by_node(&conditions.survey.by_node());
                return Ok(Applied::AlreadySo { now });
            }
            Ok(conditions) => match check(request, &conditions) {
                Ok(()) => conditions.survey,
                Err(refusal) => return left(refusal),
            },
            Err(refusal) => {
                return match process.check() {
                    Err(changed) if changed.is_end_of_pages() && self.moves_several() => {
                        let reason = changed.to_string();
                        Ok(Applied::ProcessGone { reason })
                    }
                    _ => left(refusal),
                };
            }
        };
        let before = memory_by_node(&survey.by_node());
        let name = file_of(self.header.id, self.writes.len() as u64);
        let header = RecordHeader::new(
            request.pid,
            identity.start_ticks,
            process.image(),
            request.to,
            request.shared,
        );
        let mut record = match self.announce(&name, header, planned, index, &before)? {
            Ok(record) => record,
            Err(failed) => return Ok(failed),
        };
        let pages = LivePages::new(process, request.shared);
        let mut state = self.walk(request, &pages, &mut record, survey.far_bytes());
        // A page of a large folio stays if others map another page of it (folio_likely_mapped_shared() in mm/migrate.c); smaps, from
        // which the survey is, tells by page.
        let shared = state.moved.not_moved.shared_bytes;
        let in_shared_folios = shared.saturating_sub(survey.staying_bytes());
        state.moved.wanted_bytes = survey.far_bytes().saturating_sub(in_shared_folios);
        if let Err(error) = record.sync(self.system) {
            tracing::warn!(name, reason = %error_text(&error), "cannot write the record of pages to the disk");
        }
        let after = after(&survey.by_node(), &state.moved_from, request.to);
        Ok(self.settle_move(&name, before, memory_by_node(&after), state))
    }

    /// Whether the plan moves the memory of several processes: that one of them ends is to be expected then.
    fn moves_several(&self) -> bool {
        let moves = self.plan.changes.iter();
        let moves = moves.filter(|it| matches!(it.change, Change::TaskMemory { .. }));
        moves.count() > 1
    }

    /// Begins the record of pages, and announces the move in the journal. What failed, with nothing moved, in the inner error.
    fn announce(
        &mut self,
        name: &str,
        header: RecordHeader,
        planned: &Planned,
        index: u64,
        before: &str,
    ) -> Result<Result<RecordFile, Applied>, ApplyError> {
        let journal = begin(&mut self.journal, self.state, self.system, &self.header)?;
        let new = format!("to node {}", header.to);
        let record = match RecordFile::begin(self.state, self.system, name, header) {
            Ok(record) => record,
            Err(error) => {
                let (place, reason) = (&self.state.place, error_text(&error));
                let error = format!("nothing was moved: cannot write {place}/{name}: {reason}");
                return Ok(Err(Applied::Failed { error }));
            }
        };
        let intent = Intent {
            write: self.writes.len() as u64,
            change: index,
            setting: Setting::of(&planned.change),
            old: before.to_owned(),
            new,
            owner: planned.owner.clone(),
            rebind: None,
            later_paths: Vec::new(),
        };
        if let Err(error) = journal.append(self.system, Record::Intent(Box::new(intent.clone()))) {
            let _ = self.state.remove_file(name);
            self.stop(&error);
            let error = format!(
                "nothing was moved, because the journal cannot be written: {}",
                error_text(&error)
            );
            return Ok(Err(Applied::Failed { error }));
        }
        self.writes.push(Written::intended(intent));
        Ok(Ok(record))
    }

    /// Walks the pages and moves them, up to the last or to what ends it.
    fn walk(
        &self,
        request: &MoveRequest,
        pages: &LivePages,
        record: &mut RecordFile,
        total_bytes: u64,
    ) -> State {
        let progress = |done_bytes| {
            if let Some(sink) = &self.options.progress {
                sink.0(MoveProgress {
                    done_bytes,
                    total_bytes,
                });
            }
        };
        let mut mover = Mover {
            pages,
            request,
            system: self.system,
            record,
            rate: RateLimit::new(self.options.rate_bytes_per_s),
            is_cancelled: &|| self.options.is_cancelled(),
            progress: &progress,
            huge_page_bytes: huge_page_bytes(self.system),
            state: Default::default(),
        };
        let walked = Walk::new(request.pid, &request.from)
            .each(&mut |found, page_bytes| Ok(mover.take(found, page_bytes)));
        mover.flush();
        let mut state = mover.state;
        if let (Err(error), None) = (walked, &state.end) {
            state.end = Some(refused(pages, error));
        }
        state
    }

    /// Records what came of it.
    fn settle_move(&mut self, name: &str, before: String, after: String, state: State) -> Applied {
        let mut memory = state.moved;
        memory.stopped_reason = state.end.as_ref().map(StopReason::to_string);
        let Some(written) = self.writes.last_mut() else {
            return Applied::LeftAlone {
                reason: "nothing was moved".to_owned(),
            };
        };
        let write = written.intent.write;
        let has_moved = memory.moved_bytes > 0 || state.is_unsettled;
        let (record, progress) = if has_moved {
            written.now = Some(after.clone());
            let now = after.clone();
            (Record::Done { write, now }, Progress::Done)
        } else {
            let error = memory.described();
            let failed = Progress::Failed {
                error: error.clone(),
            };
            (Record::Failed { write, error }, failed)
        };
        written.progress = progress;
        let recorded = self
            .journal
            .as_mut()
            .map_or(Ok(()), |journal| journal.append(self.system, record));
        match recorded {
            Ok(()) if !has_moved => {
                let _ = self.state.remove_file(name);
            }
            Ok(()) => {}
            Err(error) => self.stop(&error),
        }
        tracing::info!(moved = memory.moved_bytes, before, after, "moved memory");
        if !has_moved {
            let reason = format!("no page was moved: {}", memory.described());
            return Applied::LeftAlone { reason };
        }
        Applied::Moved {
            before,
            after,
            memory,
        }
    }
}

/// Of the largest page that is moved as a whole.
fn huge_page_bytes(system: &dyn System) -> u64 {
    let size = first_line(system, "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    size.and_then(|size| size.parse().ok())
        .unwrap_or(HUGE_PAGE_BYTES)
}
