//! From XML text to a list of objects that know their parents. Nothing is concluded here.

use std::borrow::Cow;
use std::rc::Rc;

use nearfar_machine::{CpuId, CpuSet, IdSet, MAX_NUMBER, NodeSet};
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

use crate::error::{TextError, excerpt, line_of, second_output};

/// How deep objects may nest. Real files stay below 30.
const DEEPEST: usize = 256;
/// How many objects there may be: more than the largest machine has CPUs, cores, caches and devices together.
const MOST_OBJECTS: usize = 400_000;
/// How many contradictions are looked for; finding the line of one takes time.
const MOST_ODDITIES: usize = 100;
/// How many distances there may be in one matrix: that of the most nodes a kernel can have.
const MOST_VALUES: usize = crate::MOST_NODES * crate::MOST_NODES;

const NEXT: &str = "a file that lstopo wrote is wanted: lstopo topology.xml";

#[derive(Default)]
pub(super) struct Document {
    /// Objects in the order of the file; a parent comes before its children.
    pub objects: Vec<Object>,
    /// Facts about the topology as a whole (version 3).
    pub infos: Vec<(String, String)>,
    pub matrices: Vec<Matrix>,
    pub performance: Vec<Performance>,
    /// The sets of the outermost object, which no other object has.
    pub root: RootSets,
    /// The major number of the format.
    pub version: u32,
    /// Contradictions that only show while an element is read.
    pub oddities: Vec<(usize, String)>,
}

/// What the outermost object says of the machine besides the sets that each object has.
#[derive(Default)]
pub(super) struct RootSets {
    /// CPUs that were online (version 1 only).
    pub online_cpus: Option<CpuSet>,
    /// Nodes that the control group of the program that wrote the file allowed.
    pub allowed_nodes: Option<NodeSet>,
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
    /// Also nodes that are no objects; neighbours share the text.
    pub complete_nodeset: Rc<str>,
    pub local_memory: Option<u64>,
    pub cache_size: Option<u64>,
    pub cache_line: Option<u64>,
    pub cache_ways: Option<i64>,
    pub cache_type: Option<u64>,
    /// The level of a cache.
    pub depth: Option<u64>,
    /// The kernel's or the library's name of an OS device.
    pub name: String,
    pub osdev_type: Option<u64>,
    pub bridge_type: String,
    pub bridge_pci: String,
    pub pci_busid: String,
    pub pci_type: String,
    pub pages: Vec<(u64, u64)>,
    pub infos: Vec<(String, String)>,
}

impl Object {
    /// A fact about it.
    pub fn info(&self, name: &str) -> Option<&str> {
        let mut infos = self.infos.iter();
        let (_, value) = infos.find(|(key, _)| key == name)?;
        Some(value)
    }

    /// The facts of these names that there are, in one line.
    pub fn words(&self, names: [&str; 2]) -> Option<String> {
        let words: Vec<&str> = names.iter().filter_map(|name| self.info(name)).collect();
        (!words.is_empty()).then(|| words.join(" "))
    }
}

/// One `<distances2>`, or one `<distances>` of version 1.
#[derive(Default)]
pub(super) struct Matrix {
    pub line: usize,
    pub kind: String,
    pub name: String,
    pub means: u64,
    pub by_os_index: bool,
    pub indexes: Vec<u64>,
    pub values: Vec<u64>,
    pub version_1: Option<OldMatrix>,
}

/// What version 1 says of a matrix: neither kind nor name, but where its objects are.
pub(super) struct OldMatrix {
    /// The object that has the matrix.
    pub owner: Option<usize>,
    /// How many levels below the owner its rows and columns are.
    pub relative_depth: usize,
    /// What each value is multiplied with.
    base: f64,
}

/// One `<memattr_value>` of a node and of CPUs that access it.
pub(super) struct Performance {
    /// `ReadLatency` (ns), `WriteBandwidth` (MiB/s) and so on.
    pub name: String,
    /// The `gp_index` of the node.
    pub target: u64,
    pub initiators: CpuSet,
    pub value: u64,
}

/// Which list the text inside of an element belongs to.
#[derive(Clone, Copy, PartialEq)]
enum Inside {
    Indexes,
    Values,
    Nothing,
}

pub(super) fn read(text: &str, place: &str) -> Result<Document, TextError> {
    let (start, part) = topology(text).unwrap_or((0, text));
    let mut reader = Reader::from_str(part);
    let position = |at: u64| start.saturating_add(usize::try_from(at).unwrap_or(usize::MAX));
    let mut walk = Walk {
        text,
        place,
        document: Document::default(),
        open: Vec::new(),
        inside: Inside::Nothing,
        attribute: String::new(),
    };
    let end = start + part.len();
    if let Some((second, _)) = topology(&text[end..]) {
        let oddity = (walk.line(end + second), second_output("hwloc XML"));
        walk.document.oddities.push(oddity);
    }
    let mut seen = false;
    loop {
        let at = position(reader.buffer_position());
        let event = reader.read_event().map_err(|error| {
            let at = position(reader.error_position());
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

/// Where hwloc's XML is in a text, without its head and with whatever stands around it in a mail left out.
fn topology(text: &str) -> Option<(usize, &str)> {
    const OPEN: &str = "<topology";
    const CLOSE: &str = "</topology>";
    let is_element = |&(at, _): &(usize, &str)| {
        text[at + OPEN.len()..].starts_with(|c: char| c.is_whitespace() || c == '>' || c == '/')
    };
    let (start, _) = text.match_indices(OPEN).find(is_element)?;
    let end = text[start..]
        .find(CLOSE)
        .map(|end| start + end + CLOSE.len());
    Some((start, &text[start..end.unwrap_or(text.len())]))
}

struct Walk<'a> {
    text: &'a str,
    place: &'a str,
    document: Document,
    /// The object that each open element is, where it is one.
    open: Vec<Option<usize>>,
    inside: Inside,
    /// The name of the last `<memattr>`.
    attribute: String,
}

impl Walk<'_> {
    fn fail(&self, at: usize, problem: String) -> TextError {
        TextError::new(self.place, Some(self.line(at)), problem, NEXT)
    }

    fn line(&self, at: usize) -> usize {
        line_of(self.text, at)
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
            "distances" => self.old_matrix(element, at)?,
            "latency" => self.latency(element, at)?,
            "indexes" => self.inside = Inside::Indexes,
            "u64values" => self.inside = Inside::Values,
            // Matrices over objects of several kinds, CPU kinds, support bits: not wanted. Their indexes must not be
            // taken for those of the matrix before.
            "distances2hetero" => self.document.matrices.push(Matrix::default()),
            "memattr" => self.attribute = self.attribute(element, at, "name")?,
            "memattr_value" => self.performance(element, at)?,
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

    /// The value of the attribute of this name; empty where it is not given.
    fn attribute(
        &self,
        element: &BytesStart<'_>,
        at: usize,
        wanted: &str,
    ) -> Result<String, TextError> {
        let mut found = String::new();
        self.attributes(element, at, |name, value| {
            if name == wanted {
                found = value.into_owned();
            }
        })?;
        Ok(found)
    }

    fn version(&mut self, element: &BytesStart<'_>, at: usize) -> Result<(), TextError> {
        let version = self.attribute(element, at, "version")?;
        // Version 1 has no attribute. A file of "2" without a minor number was not written by hwloc and is as good.
        let major = version.split('.').next().unwrap_or_default();
        self.document.version = match major {
            "" => 1,
            number => number.parse().unwrap_or(0),
        };
        if (1..=3).contains(&self.document.version) {
            return Ok(());
        }
        let version = excerpt(&version);
        let problem = format!("hwloc XML of version {version}, and versions 1 to 3 are read");
        let next = "convert it: lstopo --input F.xml --export-xml-flags v2 NEW.xml";
        let line = Some(self.line(at));
        Err(TextError::new(self.place, line, problem, next))
    }

    fn object(&mut self, element: &BytesStart<'_>, at: usize) -> Result<usize, TextError> {
        let parent = self.open.iter().rev().find_map(|open| *open);
        let mut object = Object {
            parent,
            ..Object::default()
        };
        let (is_root, mut root) = (self.document.objects.is_empty(), RootSets::default());
        let mut not_a_size = None;
        let before = self.document.objects.last();
        self.attributes(element, at, |name, value| match name {
            "local_memory" => match value.parse() {
                Ok(bytes) => object.local_memory = Some(bytes),
                Err(_) => not_a_size = Some(excerpt(&value)),
            },
            "online_cpuset" if is_root => root.online_cpus = set_of(&value),
            "allowed_nodeset" if is_root => root.allowed_nodes = set_of(&value),
            "complete_nodeset" => {
                let same = before.filter(|before| *before.complete_nodeset == *value);
                let same = same.map(|before| before.complete_nodeset.clone());
                object.complete_nodeset = same.unwrap_or_else(|| Rc::from(&*value));
            }
            _ => set(&mut object, name, &value),
        })?;
        if is_root {
            self.document.root = root;
        }
        if let Some(found) = not_a_size {
            let oddity =
                format!("local_memory {found:?} is not a number of bytes; taken as unknown");
            self.oddity(at, oddity);
        }
        if object.kind == "PU"
            && self.document.oddities.len() < MOST_ODDITIES
            && let Some(index) = object.os_index
            && !is_single(&object.cpuset, index)
            && let Some(set) = set_of::<CpuId>(&object.cpuset)
            && set.iter().any(|cpu| u64::from(cpu.0) != index)
        {
            let oddity = format!("PU {index} has the cpuset {set}; its os_index was taken");
            self.oddity(at, oddity);
        }
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

    fn oddity(&mut self, at: usize, oddity: String) {
        if self.document.oddities.len() < MOST_ODDITIES {
            self.document.oddities.push((self.line(at), oddity));
        }
    }

    /// The object that the innermost open element is.
    fn innermost(&mut self) -> Option<&mut Object> {
        let at = (*self.open.last()?)?;
        self.document.objects.get_mut(at)
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
        match self.innermost() {
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
        if let (Some(owner), Some(page)) = (self.innermost(), size.zip(count)) {
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

    fn old_matrix(&mut self, element: &BytesStart<'_>, at: usize) -> Result<(), TextError> {
        let mut old = OldMatrix {
            owner: self.open.iter().rev().find_map(|open| *open),
            relative_depth: 0,
            base: 1.0,
        };
        self.attributes(element, at, |name, value| match name {
            "relative_depth" => old.relative_depth = value.parse().unwrap_or(0),
            "latency_base" => old.base = value.parse().unwrap_or(1.0),
            _ => {}
        })?;
        self.document.matrices.push(Matrix {
            line: self.line(at),
            version_1: Some(old),
            ..Matrix::default()
        });
        Ok(())
    }

    /// One value of version 1: `<latency value="2.100000"/>`.
    fn latency(&mut self, element: &BytesStart<'_>, at: usize) -> Result<(), TextError> {
        let value = self.attribute(element, at, "value")?;
        let value: f64 = value.parse().unwrap_or(f64::NAN);
        let Some(matrix) = self.document.matrices.last_mut() else {
            return Ok(());
        };
        let Some(old) = &matrix.version_1 else {
            return Ok(());
        };
        // The kernel's distances are whole numbers; what is none is something else.
        let value = value * old.base;
        let is_whole = (value - value.round()).abs() < 0.01 && value > 0.0 && value < 1e9;
        let whole = is_whole.then_some(value.round() as u64);
        matrix.values.push(whole.unwrap_or(u64::MAX));
        if matrix.values.len() > MOST_VALUES {
            return Err(self.fail(at, format!("a matrix of more than {MOST_VALUES} distances")));
        }
        Ok(())
    }

    fn performance(&mut self, element: &BytesStart<'_>, at: usize) -> Result<(), TextError> {
        if !WANTED_PERFORMANCE.contains(&self.attribute.as_str()) {
            return Ok(());
        }
        let (mut kind, mut target, mut value) = (String::new(), None, None);
        let mut initiators = None;
        self.attributes(element, at, |name, text| match name {
            "target_obj_type" => kind = text.into_owned(),
            "target_obj_gp_index" => target = text.parse().ok(),
            "value" => value = text.parse().ok(),
            "initiator_cpuset" => initiators = set_of(&text),
            _ => {}
        })?;
        if let (Some(target), Some(value), Some(initiators)) = (target, value, initiators)
            && kind == "NUMANode"
        {
            self.document.performance.push(Performance {
                name: self.attribute.clone(),
                target,
                initiators,
                value,
            });
            if self.document.performance.len() > MOST_OBJECTS {
                return Err(self.fail(at, format!("more than {MOST_OBJECTS} memory attributes")));
            }
        }
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
    // The kind of a node's memory: version 1's name of a subtype, the DAX device or the GPU that it is.
    "Type",
    "DAXDevice",
    "PCIBusID",
    super::KERNEL_NODE,
    super::KERNEL_DRIVER,
    super::nodes::KERNEL_CPUS,
    super::KERNEL_OFFLINE,
];

/// Memory attributes that have a place in a machine; "Bandwidth" and "Latency" are all that hwloc 2.3 to 2.7 writes.
const WANTED_PERFORMANCE: &[&str] = &[
    "Bandwidth",
    "Latency",
    "ReadBandwidth",
    "ReadLatency",
    "WriteBandwidth",
    "WriteLatency",
];

fn set(object: &mut Object, name: &str, value: &str) {
    match name {
        // Before version 1.11 a package is a socket.
        "type" if value == "Socket" => object.kind = "Package".to_owned(),
        "type" => object.kind = value.to_owned(),
        "subtype" => object.subtype = value.to_owned(),
        "os_index" => object.os_index = value.parse().ok(),
        "gp_index" => object.gp_index = value.parse().ok(),
        "id" if object.gp_index.is_none() => {
            object.gp_index = value.strip_prefix("obj").and_then(|id| id.parse().ok());
        }
        "name" => object.name = value.to_owned(),
        "osdev_type" => object.osdev_type = value.parse().ok(),
        "cpuset" => object.cpuset = value.to_owned(),
        "complete_cpuset" => object.complete_cpuset = value.to_owned(),
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

/// Whether a set is that of one number, as hwloc writes it. With 65536 CPUs it has 2048 words, nearly all of them empty.
fn is_single(text: &str, number: u64) -> bool {
    let (first, rest) = text.split_once(',').unwrap_or((text, ""));
    let first = u32::from_str_radix(first.strip_prefix("0x").unwrap_or(first), 16);
    let words = text.bytes().filter(|&byte| byte == b',').count() as u64;
    first == Ok(1 << (number % 32))
        && words == number / 32
        && rest.bytes().all(|byte| matches!(byte, b',' | b'0' | b'x'))
}

/// Reads a set as hwloc writes it: `0x00000001,,0x000000ff` is most significant word first, an empty word is zero. A set
/// that goes on for ever (`0xf...f`) and one that names more than is supported are `None`.
pub(super) fn set_of<T: nearfar_machine::Id>(text: &str) -> Option<IdSet<T>> {
    const WORD: u32 = 32;
    let mut set = IdSet::new();
    for (index, word) in (0u32..).zip(text.rsplit(',')) {
        let digits = word.strip_prefix("0x").unwrap_or(word);
        let bits = match digits {
            "" => 0,
            digits => u32::from_str_radix(digits, 16).ok()?,
        };
        for bit in (0..WORD).filter(|bit| bits >> bit & 1 == 1) {
            let number = index.checked_mul(WORD)?.checked_add(bit)?;
            set.insert((number <= MAX_NUMBER).then(|| T::from_number(number))?);
        }
    }
    Some(set)
}
