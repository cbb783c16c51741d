//! How the figures of a metric are written: in one unit, each with the digits that mean something.

use nearfar_runs::Metric;

use super::Shown;
use crate::amount::{decimals, figure, scaled};

/// The unit and the digits of a metric's figures in one run.
pub(crate) struct Written<'a> {
    metric: &'a Metric,
    pub(crate) unit: &'a str,
    divisor: f64,
    decimals: usize,
}

impl<'a> Written<'a> {
    /// By the largest sample.
    pub(crate) fn of(shown: &Shown<'_>, metric: &'a Metric) -> Self {
        let cells = shown.cells.iter();
        let figures = cells.filter_map(|cell| cell.metric(&metric.name)?.moments);
        let largest = figures
            .map(|it| it.max.abs().max(it.min.abs()))
            .fold(0.0, f64::max);
        let (divisor, unit) = scaled(&metric.unit, largest);
        Self {
            metric,
            unit,
            divisor,
            decimals: decimals(largest / divisor),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.metric.name
    }

    /// In the unit.
    pub(crate) fn number(&self, value: f64) -> f64 {
        value / self.divisor
    }

    /// Without the unit.
    pub(crate) fn text(&self, value: f64) -> String {
        figure(self.number(value), self.decimals)
    }

    /// `1.5 to 2.5`.
    pub(crate) fn interval(&self, low: f64, high: f64) -> String {
        format!("{} to {}", self.text(low), self.text(high))
    }

    /// The name of the metric with the unit.
    pub(crate) fn title(&self) -> String {
        match self.unit {
            "" => self.metric.name.clone(),
            unit => format!("{} ({unit})", self.metric.name),
        }
    }
}
