//! Reading a [`Known`] in one pass.
//!
//! An object whose only key is `unknown_reason` is a reason, everything else is the value. The first key decides, so
//! nothing has to be kept to be read twice: a hostile snapshot costs no more memory than the machine it describes, and
//! an error is the value's own, naming the field, not "matches no variant".

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{
    BorrowedStrDeserializer, MapAccessDeserializer, SeqAccessDeserializer, UnitDeserializer,
};
use serde::de::{
    DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::{Deserialize, forward_to_deserialize_any};

use super::Known;

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
            return T::deserialize(Replayed(MapAccessDeserializer::new(FromFirst {
                first,
                map,
            })))
            .map(Known::Yes);
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
