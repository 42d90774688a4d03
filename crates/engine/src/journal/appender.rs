//! Encodes groups of frames and assigns their positions. It does no file I/O, except for asking the pool for the next
//! file once per segment.
//!
//! Frames are encoded directly into the buffer that will be written. Their headers are filled in when the group ends,
//! because only then is it known whether the group fits into the current segment: a group never spans two segments.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::frame::{self, FLAG_CONT, FLAG_MORE, FRAME_HEADER_BYTES, KIND_MARK, MARK_BYTES};
use super::header::{HEADER_BYTES, Header, push_header};
use super::segment::{BLOCK_BYTES, Segment, Segments};
use super::writer::Marks;
use super::{Pool, Pos};

/// Bytes to be written to one segment at one offset.
pub struct Chunk {
    pub(super) segment: Arc<Segment>,
    pub(super) offset: u32,
    len: usize,
    /// The bytes, padded with zeros to the end of the block.
    padded: Vec<u8>,
    buffers: Arc<Buffers>,
}

impl Chunk {
    /// The position of its first byte.
    pub fn start(&self) -> Pos {
        Pos::new(self.segment.generation, self.offset)
    }

    /// The position after its last byte.
    pub fn end(&self) -> Pos {
        self.start().plus(self.len as u32)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.padded[..self.len]
    }

    /// The bytes to write. The padding is harmless, because nothing follows yet. It avoids reading a partly written
    /// block that is not cached.
    pub(super) fn padded(&self) -> &[u8] {
        &self.padded
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.buffers.give(std::mem::take(&mut self.padded));
    }
}

/// Buffers for reuse: fresh memory from the system is cleared first, which takes as long as filling it.
#[derive(Default)]
struct Buffers(Mutex<Vec<Vec<u8>>>);

/// How many buffers are kept, and of which sizes.
const BUFFERS_MAX: usize = 4;
const BUFFER_BYTES_MIN: usize = 64 << 10;
const BUFFER_BYTES_MAX: usize = 2 << 20;

impl Buffers {
    /// An empty buffer with this capacity.
    fn take(&self, bytes: usize) -> Vec<u8> {
        let mut kept = self.0.lock();
        match kept.iter().position(|buffer| buffer.capacity() >= bytes) {
            Some(at) => kept.swap_remove(at),
            None => Vec::with_capacity(bytes),
        }
    }

    fn give(&self, mut buffer: Vec<u8>) {
        // Small buffers are cheap, and would displace large ones.
        if !(BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&buffer.capacity()) {
            return;
        }
        buffer.clear();
        let mut kept = self.0.lock();
        if kept.len() < BUFFERS_MAX {
            kept.push(buffer);
        }
    }
}

/// The result of [`Appender::take`]: rarely more than one chunk.
pub type Chunks = SmallVec<[Chunk; 1]>;

/// A frame of the group being built; [`GroupPosition::pos`] returns its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameRef(u32);

/// The position of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupPosition {
    pub start: Pos,
    /// The position after the last frame. The group is durable once the durable mark reaches it.
    pub end: Pos,
}

impl GroupPosition {
    /// The position of a frame of this group.
    pub fn pos(&self, frame: FrameRef) -> Pos {
        self.start.plus(frame.0)
    }
}

/// Why a group was not appended. The journal is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    #[error("the group has {bytes} bytes; the journal accepts at most {bytes_max}")]
    TooLarge {
        /// The frames with their headers.
        bytes: usize,
        bytes_max: usize,
    },
    /// There is no next segment: the disk is full or failing.
    #[error("the next journal segment could not be created: {0}")]
    NoSegment(#[source] io::Error),
}

/// Appends groups. Owned by the core's thread.
pub struct Appender {
    segments: Segments,
    pool: Pool,
    marks: Arc<Marks>,
    current: Arc<Segment>,
    group_bytes_max: usize,

    /// What has not been taken of the current segment; empty, or begins with a mark.
    buf: Vec<u8>,
    buffers: Arc<Buffers>,
    /// The offset of `buf[0]` in the current segment.
    base: u32,
    /// Chunks of earlier segments that have not been taken.
    full: Chunks,
    /// Whether there is something to take.
    dirty: bool,

    group_at: usize,
    /// The start in `buf` and the kind of each frame of the group being built.
    frames: Vec<(u32, u8)>,
    end: Pos,
    last_eager: Pos,
}

impl Appender {
    /// Continues at the start of `current`, whose header is on disk.
    pub(super) fn new(
        segments: Segments,
        pool: Pool,
        marks: Arc<Marks>,
        current: Arc<Segment>,
        segment_bytes: u64,
    ) -> Self {
        let end = Pos::new(current.generation, HEADER_BYTES as u32);
        Appender {
            segments,
            pool,
            marks,
            current,
            group_bytes_max: segment_bytes as usize - 1 - HEADER_BYTES - MARK_BYTES,
            buf: Vec::new(),
            buffers: Arc::default(),
            base: HEADER_BYTES as u32,
            full: Chunks::new(),
            dirty: false,
            group_at: 0,
            frames: Vec::new(),
            end,
            last_eager: end,
        }
    }

    /// The size of the largest group, including frame headers of 18 bytes each.
    pub fn group_bytes_max(&self) -> usize {
        self.group_bytes_max
    }

    /// Why no further segment can be begun, if not because the disk is full.
    pub fn blocked_by(&self) -> Option<String> {
        self.pool.blocked_by()
    }

    /// The end of the journal, written or not.
    pub fn end_pos(&self) -> Pos {
        self.end
    }

    /// The end of the last group that was not lazy.
    pub fn last_eager(&self) -> Pos {
        self.last_eager
    }

    /// Starts a group, and drops an unfinished one.
    pub fn begin(&mut self) {
        self.abandon();
        if self.buf.is_empty() {
            let pos = Pos::new(self.current.generation, self.base);
            frame::push_mark(&mut self.buf, pos, self.current.salt, self.marks.durable());
        }
        self.group_at = self.buf.len();
    }

    /// Starts a group of at most `bytes`, including frame headers. Begins the next segment now if the group does not
    /// fit, so that positions are known as frames are added.
    pub fn begin_with_room(&mut self, bytes: usize) -> Result<(), AppendError> {
        self.begin();
        if bytes > self.group_bytes_max {
            return Err(AppendError::TooLarge { bytes, bytes_max: self.group_bytes_max });
        }
        if self.base as usize + self.buf.len() + bytes > self.current.file.limit() as usize {
            self.roll().map_err(AppendError::NoSegment)?;
        }
        Ok(())
    }

    /// Adds a frame to a group that was begun with room, and returns its position.
    #[inline]
    pub fn frame_at(&mut self, kind: u8, body: impl FnOnce(&mut Vec<u8>)) -> Pos {
        let frame = self.frame(kind, body);
        Pos::new(self.current.generation, self.base + self.group_at as u32 + frame.0)
    }

    /// Ends a group that was begun with room. A group without frames has no effect.
    pub fn end_group(&mut self, lazy: bool) {
        if !self.frames.is_empty() {
            let start = self.current.generation;
            let placed = self.end(lazy).expect("room was made when the group was begun");
            assert!(placed.start.generation() == start, "a group outgrew the room it asked for");
        }
    }

    /// Adds a frame to the group. `body` must only append to the buffer.
    #[inline]
    pub fn frame(&mut self, kind: u8, body: impl FnOnce(&mut Vec<u8>)) -> FrameRef {
        assert!(kind != KIND_MARK, "kind 0 is the journal's own");
        let at = self.buf.len();
        self.buf.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
        body(&mut self.buf);
        assert!(self.buf.len() >= at + FRAME_HEADER_BYTES, "a body is only ever appended");
        self.frames.push((at as u32, kind));
        FrameRef((at - self.group_at) as u32)
    }

    /// The size of the group so far, including frame headers.
    pub fn group_bytes(&self) -> usize {
        if self.frames.is_empty() { 0 } else { self.buf.len() - self.group_at }
    }

    /// Drops the group being built.
    pub fn abandon(&mut self) {
        if !self.frames.is_empty() {
            self.buf.truncate(self.group_at);
            self.frames.clear();
        }
    }

    /// Ends the group and returns its position. A `lazy` group is written and synced with others.
    pub fn end(&mut self, lazy: bool) -> Result<GroupPosition, AppendError> {
        assert!(!self.frames.is_empty(), "a group has frames");
        let bytes = self.buf.len() - self.group_at;
        if bytes > self.group_bytes_max {
            self.abandon();
            return Err(AppendError::TooLarge { bytes, bytes_max: self.group_bytes_max });
        }
        if self.base as usize + self.buf.len() > self.current.file.limit() as usize
            && let Err(error) = self.roll()
        {
            self.abandon();
            return Err(AppendError::NoSegment(error));
        }
        let (generation, salt) = (self.current.generation, self.current.salt);
        let last = self.frames.len() - 1;
        let mut stop = self.buf.len();
        for (index, &(at, kind)) in self.frames.iter().enumerate().rev() {
            let alone = cfg!(feature = "mutate-torn-groups");
            let (more, cont) = (index < last && !alone, index > 0 && !alone);
            let flags = if more { FLAG_MORE } else { 0 } | if cont { FLAG_CONT } else { 0 };
            let pos = Pos::new(generation, self.base + at);
            frame::seal_frame(&mut self.buf[at as usize..stop], pos, salt, kind, flags);
            stop = at as usize;
        }
        self.frames.clear();
        let start = Pos::new(generation, self.base + self.group_at as u32);
        self.group_at = self.buf.len();
        self.end = Pos::new(generation, self.base + self.buf.len() as u32);
        self.dirty = true;
        if !lazy {
            self.last_eager = self.end;
        }
        Ok(GroupPosition { start, end: self.end })
    }

    /// Records the durable position, without a group. Useful when idle and before a shutdown: a later recovery can then
    /// tell damage in the last commits from a torn tail.
    pub fn mark(&mut self) {
        self.abandon();
        let at = self.base as usize + self.buf.len();
        if at + MARK_BYTES <= self.current.file.limit() as usize {
            let pos = Pos::new(self.current.generation, at as u32);
            frame::push_mark(&mut self.buf, pos, self.current.salt, self.marks.durable());
            self.group_at = self.buf.len();
        } else if self.roll().is_err() {
            return; // not essential on a full disk
        }
        self.end = Pos::new(self.current.generation, self.base + self.buf.len() as u32);
        self.dirty = true;
    }

    /// Everything to be written now, in order.
    pub fn take(&mut self) -> Option<Chunks> {
        self.abandon();
        if !self.dirty {
            return None;
        }
        self.dirty = false;
        let mut chunks = std::mem::take(&mut self.full);
        let bytes = (self.buf.len() + self.buf.len() / 4).clamp(2 * BLOCK_BYTES, 1 << 20);
        let next = self.buffers.take(bytes);
        chunks.push(self.cut_chunk(next));
        Some(chunks)
    }

    fn cut_chunk(&mut self, next: Vec<u8>) -> Chunk {
        let mut padded = std::mem::replace(&mut self.buf, next);
        let (offset, len) = (self.base, padded.len());
        let end = offset as usize + len;
        let block_end = end.next_multiple_of(BLOCK_BYTES).min(self.current.file.len as usize);
        padded.resize(len + block_end.saturating_sub(end), 0);
        let (segment, buffers) = (self.current.clone(), self.buffers.clone());
        let chunk = Chunk { segment, offset, len, padded, buffers };
        self.base += len as u32;
        self.group_at = 0;
        chunk
    }

    /// Begins the next segment and moves the unfinished group there.
    fn roll(&mut self) -> io::Result<()> {
        let group_bytes = self.buf.len() - self.group_at;
        let file = self.pool.take((HEADER_BYTES + MARK_BYTES + group_bytes + 1) as u64)?;
        let header = Header {
            generation: self.current.generation + 1,
            previous_end: self.end,
            durable: self.marks.durable(),
            salt: self.current.salt,
        };
        let mut next = Vec::with_capacity(HEADER_BYTES + MARK_BYTES + group_bytes);
        push_header(&mut next, &header);
        let first = Pos::new(header.generation, HEADER_BYTES as u32);
        frame::push_mark(&mut next, first, header.salt, header.durable);
        let group_at = next.len();
        next.extend_from_slice(&self.buf[self.group_at..]);
        for (at, _) in &mut self.frames {
            *at = *at - self.group_at as u32 + group_at as u32;
        }
        self.buf.truncate(self.group_at);
        let whole = self.base as usize + self.buf.len() == self.end.offset() as usize;
        if whole && !self.buf.is_empty() {
            let chunk = self.cut_chunk(next);
            self.full.push(chunk);
        } else {
            self.buf = next; // there was only a mark: not worth writing
        }
        self.current.seal(self.end.offset());
        self.current = Arc::new(Segment::new(file, &header));
        self.segments.insert(self.current.clone());
        self.base = 0;
        self.group_at = group_at;
        Ok(())
    }
}
