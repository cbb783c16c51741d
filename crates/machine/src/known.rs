//! Unknown is a value: a field either holds what a source saw, or says why it could not see.
//!
//! It is read in one pass: an object whose only key is `unknown_reason` is a reason, everything else is the value. The first key decides, so
//! nothing has to be kept to be read twice: a hostile snapshot costs no more memory than the machine it describes, and
//! an error is the value's own, naming the field, not "matches no variant".

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::marker::PhantomData;

use serde::de::value::{
    BorrowedStrDeserializer, MapAccessDeserializer, SeqAccessDeserializer, UnitDeserializer,
};
use serde::de::{
    DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::{Deserialize, Serialize, forward_to_deserialize_any};

/// The reason of a value whose reading no caller wanted.
pub const NOT_ASKED_FOR: &str = "not asked for";

/// What a source saw, or why it could not see.
///
/// In JSON a known value stands for itself and an unknown one is
/// `{"unknown_reason": "permission denied: /proc/1/numa_maps"}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(untagged)]
pub enum Known<T> {
    /// The source could not see this; a sentence fragment that reads well after "unknown: ".
    No {
        /// Why, naming the file or the missing capability.
        unknown_reason: Cow<'static, str>,
    },
    Yes(T),
}

impl<T> Known<T> {
    /// An unknown value with its reason, such as `"this source has no interrupts"`.
    pub fn no(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::No {
            unknown_reason: reason.into(),
        }
    }

    /// The value of a field that snapshots of older versions do not have.
    pub(crate) fn left_out() -> Self {
        Self::no("not in this snapshot")
    }

    /// The value, or the reason where there is none.
    pub fn from_option<R>(value: Option<T>, reason: impl FnOnce() -> R) -> Self
    where
        R: Into<Cow<'static, str>>,
    {
        value.map_or_else(|| Self::no(reason()), Self::Yes)
    }

    /// The value, or the text of the error that stands in its place.
    pub fn from_result(result: Result<T, impl Display>) -> Self {
        result.map_or_else(|error| Self::no(error.to_string()), Self::Yes)
    }

    pub fn get(&self) -> Option<&T> {
        match self {
            Self::Yes(value) => Some(value),
            Self::No { .. } => None,
        }
    }

    pub fn known(self) -> Option<T> {
        match self {
            Self::Yes(value) => Some(value),
            Self::No { .. } => None,
        }
    }

    pub fn unknown_reason(&self) -> Option<&str> {
        match self {
            Self::Yes(_) => None,
            Self::No { unknown_reason } => Some(unknown_reason),
        }
    }

    pub fn as_ref(&self) -> Known<&T> {
        match self {
            Self::Yes(value) => Known::Yes(value),
            Self::No { unknown_reason } => Known::No {
                unknown_reason: unknown_reason.clone(),
            },
        }
    }

    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Known<U> {
        self.and_then(|value| Known::Yes(f(value)))
    }

    /// What follows from the value; an unknown value keeps its reason.
    pub fn and_then<U>(self, f: impl FnOnce(T) -> Known<U>) -> Known<U> {
        match self {
            Self::Yes(value) => f(value),
            Self::No { unknown_reason } => Known::No { unknown_reason },
        }
    }
}

impl<T> Known<Vec<T>> {
    /// The items of a list; none where it is unknown.
    pub fn items(&self) -> &[T] {
        self.get().map_or(&[], Vec::as_slice)
    }

    /// The same, to be changed.
    pub fn items_mut(&mut self) -> &mut [T] {
        match self {
            Self::Yes(items) => items,
            Self::No { .. } => &mut [],
        }
    }
}

impl<T> From<T> for Known<T> {
    fn from(value: T) -> Self {
        Self::Yes(value)
    }
}

const REASON: &str = "unknown_reason";

/// The key in snapshots and runs that were stored before it was renamed.
const EARLIER_REASON: &str = "not_known_because";

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Known<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KnownVisitor(PhantomData))
    }
}

struct KnownVisitor<T>(PhantomData<T>);

/// Hands a scalar on to the value's own reader.
macro_rules! scalar {
    ($($visit:ident: $kind:ty),*) => {$(
        fn $visit<E: Error>(self, value: $kind) -> Result<Self::Value, E> {
            T::deserialize(Replayed(value.into_deserializer())).map(Known::Yes)
        }
    )*};
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for KnownVisitor<T> {
    type Value = Known<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value, or an object whose only key is `{REASON}`")
    }

    scalar!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str, visit_string: String);

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Self::Value, E> {
        T::deserialize(Replayed(BorrowedStrDeserializer::new(value))).map(Known::Yes)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        T::deserialize(UnitDeserializer::new()).map(Known::Yes)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
        T::deserialize(Replayed(SeqAccessDeserializer::new(items))).map(Known::Yes)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let first = map.next_key::<String>()?;
        if !matches!(first.as_deref(), Some(REASON | EARLIER_REASON)) {
            let whole = MapAccessDeserializer::new(FromFirst { first, map });
            return T::deserialize(Replayed(whole)).map(Known::Yes);
        }
        let unknown_reason = Cow::Owned(map.next_value::<String>()?);
        match map.next_key::<String>()? {
            None => Ok(Known::No { unknown_reason }),
            Some(other) => Err(A::Error::custom(format_args!(
                "`{other}` next to `{REASON}`"
            ))),
        }
    }
}

/// A map whose first key was already read. Keys are text: that holds for every object of the model.
struct FromFirst<A> {
    first: Option<String>,
    map: A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for FromFirst<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        match self.first.take() {
            Some(first) => seed.deserialize(first.into_deserializer()).map(Some),
            None => self.map.next_key_seed(seed),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// serde's ready-made readers of single values know neither options nor newtypes; a known `null` or node number is one.
struct Replayed<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Replayed<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}
