//! Pages as XML, to be looked through.
#![allow(dead_code)] // Each test binary uses another part.

use std::collections::BTreeMap;

use quick_xml::events::Event;

/// An element with its attributes, the text within it and where it stands.
#[derive(Debug, Clone, Default)]
pub struct Element {
    pub name: String,
    pub attributes: BTreeMap<String, String>,
    /// The text in it and in what it holds.
    pub text: String,
    /// The names of the elements around it, outermost first.
    pub around: Vec<String>,
    /// The names of the elements directly in it.
    pub children: Vec<String>,
}

impl Element {
    pub fn get(&self, attribute: &str) -> Option<&str> {
        self.attributes.get(attribute).map(String::as_str)
    }

    pub fn is_in(&self, name: &str) -> bool {
        self.around.iter().any(|other| other == name)
    }
}

/// All elements in the order in which they begin, or what is wrong with the document.
pub fn elements(xml: &str) -> Result<Vec<Element>, String> {
    let mut reader = quick_xml::Reader::from_str(xml);
    reader.config_mut().check_end_names = true;
    let (mut all, mut open): (Vec<Element>, Vec<usize>) = (Vec::new(), Vec::new());
    loop {
        match reader.read_event().map_err(|error| error.to_string())? {
            Event::Eof if open.is_empty() => return Ok(all),
            Event::Eof => return Err(format!("<{}> is not closed", all[open[0]].name)),
            event @ (Event::Start(_) | Event::Empty(_)) => {
                let closed = matches!(event, Event::Empty(_));
                let (Event::Start(tag) | Event::Empty(tag)) = event else {
                    unreachable!()
                };
                let mut element = Element {
                    name: tag.name().as_ref().to_owned(),
                    ..Element::default()
                };
                for attribute in tag.attributes() {
                    let attribute =
                        attribute.map_err(|error| format!("{error} in {}", element.name))?;
                    let value = quick_xml::escape::unescape(&attribute.value)
                        .map_err(|error| error.to_string())?;
                    element
                        .attributes
                        .insert(attribute.key.as_ref().to_owned(), value.into_owned());
                }
                element.around = open.iter().map(|&index| all[index].name.clone()).collect();
                if let Some(&parent) = open.last() {
                    all[parent].children.push(element.name.clone());
                }
                all.push(element);
                if !closed {
                    open.push(all.len() - 1);
                }
            }
            Event::End(_) => drop(open.pop()),
            Event::Text(text) => {
                let text = text.to_string();
                open.iter()
                    .for_each(|&index| all[index].text.push_str(&text));
            }
            Event::GeneralRef(name) => {
                let text = quick_xml::escape::unescape(&format!("&{};", &*name))
                    .map_err(|error| error.to_string())?
                    .into_owned();
                open.iter()
                    .for_each(|&index| all[index].text.push_str(&text));
            }
            _ => {}
        }
    }
}

/// A page as XML: without its document type, and with what HTML leaves open or without a value written out.
pub fn as_xml(page: &str) -> String {
    let body = page.strip_prefix("<!DOCTYPE html>").unwrap_or(page);
    let mut xml = String::new();
    for part in body.split_inclusive('>') {
        match part.rsplit_once("<meta ") {
            Some((before, meta)) => {
                xml.extend([before, "<meta ", meta.trim_end_matches('>'), "/>"])
            }
            None if part.ends_with(" open>") => {
                xml.extend([part.trim_end_matches(" open>"), " open=\"\">"])
            }
            None => xml.push_str(part),
        }
    }
    xml
}

/// The elements of a page.
pub fn page(page: &str) -> Result<Vec<Element>, String> {
    elements(&as_xml(page))
}
