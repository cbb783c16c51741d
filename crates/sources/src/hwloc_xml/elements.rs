//! From XML text to a list of objects that know their parents. Nothing is concluded here.

use std::borrow::Cow;

use nearfar_machine::{IdSet, MAX_NUMBER};
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

use crate::error::TextError;
use crate::warnings::excerpt;

/// How deep objects may nest. Real files stay below 30.
const DEEPEST: usize = 256;
/// How many objects there may be: more than the largest machine has CPUs, cores, caches and devices together.
const MOST_OBJECTS: usize = 400_000;
/// How many distances there may be in one matrix: that of the most nodes a kernel can have.
const MOST_VALUES: usize = crate::limits::MOST_NODES * crate::limits::MOST_NODES;

const NEXT: &str = "a file that lstopo wrote is wanted: lstopo topology.xml";

#[derive(Default)]
pub(super) struct Document {
    /// Objects in the order of the file; a parent comes before its children.
    pub objects: Vec<Object>,
    /// Facts about the topology as a whole (version 3).
    pub infos: Vec<(String, String)>,
    pub matrices: Vec<Matrix>,
}

/// One `<object>`. Text attributes that are not given are empty, numbers `None`.
#[derive(Default)]
pub(super) struct Object {
    pub parent: Option<usize>,
    pub kind: String,
    pub subtype: String,
    pub os_index: Option<u64>,
    pub gp_index: Option<u64>,
    pub complete_cpuset: String,
    pub cpuset: String,
    pub local_memory: Option<u64>,
    pub cache_size: Option<u64>,
    pub cache_line: Option<u64>,
    pub cache_ways: Option<i64>,
    pub cache_type: Option<u64>,
    pub depth: Option<u64>,
    pub bridge_type: String,
    pub bridge_pci: String,
    pub pci_busid: String,
    pub pci_type: String,
    pub pages: Vec<(u64, u64)>,
    pub infos: Vec<(String, String)>,
}

/// One `<distances2>`.
#[derive(Default)]
pub(super) struct Matrix {
    pub line: usize,
    pub kind: String,
    pub name: String,
    pub means: u64,
    pub by_os_index: bool,
    pub indexes: Vec<u64>,
    pub values: Vec<u64>,
}

/// Which list the text inside of an element belongs to.
#[derive(Clone, Copy, PartialEq)]
enum Inside {
    Indexes,
    Values,
    Nothing,
}

pub(super) fn read(text: &str, place: &str) -> Result<Document, TextError> {
    let mut reader = Reader::from_str(text);
    let mut walk = Walk {
        text,
        place,
        document: Document::default(),
        open: Vec::new(),
        inside: Inside::Nothing,
    };
    let mut seen = false;
    loop {
        let at = usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX);
        let event = reader.read_event().map_err(|error| {
            let at = usize::try_from(reader.error_position()).unwrap_or(usize::MAX);
            walk.fail(at, format!("not well-formed XML: {error}"))
        })?;
        match event {
            Event::Start(element) => {
                if walk.open.len() >= DEEPEST {
                    return Err(walk.fail(at, format!("elements nest deeper than {DEEPEST}")));
                }
                let object = walk.start(&element, at, &mut seen)?;
                walk.open.push(object);
            }
            Event::Empty(element) => {
                walk.start(&element, at, &mut seen)?;
                walk.inside = Inside::Nothing;
            }
            Event::End(_) => {
                walk.open.pop();
                walk.inside = Inside::Nothing;
            }
            Event::Text(numbers) => walk.numbers(&numbers, at)?,
            Event::Eof => break,
            // Entities are not expanded: hwloc writes none in text, and a document type may define any.
            _ => {}
        }
    }
    if !walk.open.is_empty() {
        return Err(walk.fail(text.len(), "the file ends in the middle".to_owned()));
    }
    match seen {
        true => Ok(walk.document),
        false => Err(walk.fail(0, "no <topology> in it".to_owned())),
    }
}

struct Walk<'a> {
    text: &'a str,
    place: &'a str,
    document: Document,
    /// The object that each open element is, where it is one.
    open: Vec<Option<usize>>,
    inside: Inside,
}

impl Walk<'_> {
    fn fail(&self, at: usize, problem: String) -> TextError {
        TextError::new(self.place, Some(self.line(at)), problem, NEXT)
    }

    fn line(&self, at: usize) -> usize {
        let before = self
            .text
            .as_bytes()
            .get(..at)
            .unwrap_or(self.text.as_bytes());
        before.iter().filter(|&&byte| byte == b'\n').count() + 1
    }

    /// Takes up an element; the number of the object it is, where it is one.
    fn start(
        &mut self,
        element: &BytesStart<'_>,
        at: usize,
        seen: &mut bool,
    ) -> Result<Option<usize>, TextError> {
        let name: Cow<'_, str> = element.name().into_inner().into();
        if !*seen && name != "topology" {
            let problem = format!("the first element is <{}>, not <topology>", excerpt(&name));
            return Err(self.fail(at, problem));
        }
        match &*name {
            "topology" => {
                self.version(element, at)?;
                *seen = true;
            }
            "object" => return self.object(element, at).map(Some),
            "info" => self.info(element, at)?,
            "page_type" => self.page_type(element, at)?,
            "distances2" => self.matrix(element, at)?,
            "indexes" => self.inside = Inside::Indexes,
            "u64values" => self.inside = Inside::Values,
            // Matrices over objects of several kinds, memory attributes, CPU kinds, support bits: not wanted. Their
            // indexes must not be taken for those of the matrix before.
            "distances2hetero" => self.document.matrices.push(Matrix::default()),
            _ => {}
        }
        Ok(None)
    }

    /// Calls `f` with each attribute's name and value.
    fn attributes(
        &self,
        element: &BytesStart<'_>,
        at: usize,
        mut f: impl FnMut(&str, Cow<'_, str>),
    ) -> Result<(), TextError> {
        for attribute in element.attributes().with_checks(false) {
            let attribute = attribute
                .map_err(|error| self.fail(at, format!("a damaged attribute: {error}")))?;
            let value = attribute.normalized_value(XmlVersion::Implicit1_0);
            let value = value
                .map_err(|error| self.fail(at, format!("a value that cannot be read: {error}")))?;
            f(attribute.key.into_inner(), value);
        }
        Ok(())
    }

    fn version(&mut self, element: &BytesStart<'_>, at: usize) -> Result<(), TextError> {
        let mut version = String::new();
        self.attributes(element, at, |name, value| {
            if name == "version" {
                version = value.into_owned();
            }
        })?;
        if version.starts_with("2.") || version.starts_with("3.") {
            return Ok(());
        }
        let (problem, next) = match version.as_str() {
            "" => (
                "hwloc XML of version 1, which is too old".to_owned(),
                "convert it with hwloc 2: lstopo --input OLD.xml NEW.xml",
            ),
            other => (
                format!(
                    "hwloc XML of version {}, and versions 2 and 3 are read",
                    excerpt(other)
                ),
                "convert it: lstopo --input F.xml --export-xml-flags v2 NEW.xml",
            ),
        };
        Err(TextError::new(
            self.place,
            Some(self.line(at)),
            problem,
            next,
        ))
    }

    fn object(&mut self, element: &BytesStart<'_>, at: usize) -> Result<usize, TextError> {
        let parent = self.open.iter().rev().find_map(|open| *open);
        let mut object = Object {
            parent,
            ..Object::default()
        };
        self.attributes(element, at, |name, value| set(&mut object, name, &value))?;
        // On a large machine each set takes kilobytes, and only those of few objects are looked at.
        if matches!(object.kind.as_str(), "PU" | "Core") || object.kind.starts_with("L1") {
            (object.cpuset, object.complete_cpuset) = Default::default();
        }
        if self.document.objects.len() >= MOST_OBJECTS {
            return Err(self.fail(at, format!("more than {MOST_OBJECTS} objects")));
        }
        self.document.objects.push(object);
        Ok(self.document.objects.len() - 1)
    }

    fn info(&mut self, element: &BytesStart<'_>, at: usize) -> Result<(), TextError> {
        let mut pair = (String::new(), String::new());
        self.attributes(element, at, |name, value| match name {
            "name" => pair.0 = value.into_owned(),
            "value" => pair.1 = value.into_owned(),
            _ => {}
        })?;
        if !WANTED_INFOS.contains(&pair.0.as_str()) {
            return Ok(());
        }
        let owner = self
            .open
            .last()
            .copied()
            .flatten()
            .and_then(|owner| self.document.objects.get_mut(owner));
        match owner {
            Some(object) => object.infos.push(pair),
            None => self.document.infos.push(pair),
        }
        Ok(())
    }

    fn page_type(&mut self, element: &BytesStart<'_>, at: usize) -> Result<(), TextError> {
        let (mut size, mut count) = (None, None);
        self.attributes(element, at, |name, value| match name {
            "size" => size = value.parse().ok(),
            "count" => count = value.parse().ok(),
            _ => {}
        })?;
        let owner = self
            .open
            .last()
            .copied()
            .flatten()
            .and_then(|owner| self.document.objects.get_mut(owner));
        if let (Some(owner), Some(page)) = (owner, size.zip(count)) {
            owner.pages.push(page);
        }
        Ok(())
    }

    fn matrix(&mut self, element: &BytesStart<'_>, at: usize) -> Result<(), TextError> {
        let mut matrix = Matrix {
            line: self.line(at),
            ..Matrix::default()
        };
        self.attributes(element, at, |name, value| match name {
            "type" => matrix.kind = value.into_owned(),
            "name" => matrix.name = value.into_owned(),
            "kind" => matrix.means = value.parse().unwrap_or(0),
            "indexing" => matrix.by_os_index = value == "os",
            _ => {}
        })?;
        self.document.matrices.push(matrix);
        Ok(())
    }

    /// The text of `<indexes>` and `<u64values>`.
    fn numbers(&mut self, text: &str, at: usize) -> Result<(), TextError> {
        let matrix = self.document.matrices.last_mut();
        let list = match (self.inside, matrix) {
            (Inside::Indexes, Some(matrix)) => &mut matrix.indexes,
            (Inside::Values, Some(matrix)) => &mut matrix.values,
            _ => return Ok(()),
        };
        for word in text.split_ascii_whitespace() {
            // Matrices over objects of several kinds have indexes such as "PU:3"; they are not wanted anyway.
            list.push(word.parse().unwrap_or(u64::MAX));
            if list.len() > MOST_VALUES {
                return Err(self.fail(at, format!("a matrix of more than {MOST_VALUES} distances")));
            }
        }
        Ok(())
    }
}

/// Facts that end up in a machine.
const WANTED_INFOS: &[&str] = &[
    "OSRelease",
    "Architecture",
    "HostName",
    "DMISysVendor",
    "DMIProductName",
    "Backend",
    "PCIVendor",
    "PCIDevice",
    super::pci::KERNEL_NODE,
    super::pci::KERNEL_CPUS,
    super::pci::DRIVER,
];

fn set(object: &mut Object, name: &str, value: &str) {
    match name {
        "type" => object.kind = value.to_owned(),
        "subtype" => object.subtype = value.to_owned(),
        "os_index" => object.os_index = value.parse().ok(),
        "gp_index" => object.gp_index = value.parse().ok(),
        "cpuset" => object.cpuset = value.to_owned(),
        "complete_cpuset" => object.complete_cpuset = value.to_owned(),
        "local_memory" => object.local_memory = value.parse().ok(),
        "cache_size" => object.cache_size = value.parse().ok(),
        "cache_linesize" => object.cache_line = value.parse().ok(),
        "cache_associativity" => object.cache_ways = value.parse().ok(),
        "cache_type" => object.cache_type = value.parse().ok(),
        "depth" => object.depth = value.parse().ok(),
        "bridge_type" => object.bridge_type = value.to_owned(),
        "bridge_pci" => object.bridge_pci = value.to_owned(),
        "pci_busid" => object.pci_busid = value.to_owned(),
        "pci_type" => object.pci_type = value.to_owned(),
        _ => {}
    }
}

/// Reads a set as hwloc writes it: `0x00000001,,0x000000ff` is most significant word first, an empty word is zero. A set
/// that goes on for ever (`0xf...f`) and one that names more than is supported are `None`.
pub(super) fn set_of<T: nearfar_machine::Id>(text: &str) -> Option<IdSet<T>> {
    const WORD: u32 = 32;
    let mut set = IdSet::new();
    for (index, word) in (0u32..).zip(text.rsplit(',')) {
        let digits = word.strip_prefix("0x").unwrap_or(word);
        let bits = if digits.is_empty() {
            0
        } else {
            u32::from_str_radix(digits, 16).ok()?
        };
        for bit in (0..WORD).filter(|bit| bits >> bit & 1 == 1) {
            let number = index
                .checked_mul(WORD)?
                .checked_add(bit)
                .filter(|&number| number <= MAX_NUMBER)?;
            set.insert(T::from_number(number));
        }
    }
    Some(set)
}
