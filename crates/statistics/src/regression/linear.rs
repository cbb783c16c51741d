//! The linear algebra of a few columns: X = QR by Gram and Schmidt, done twice.
//!
//! Columns are scaled to length 1 first, so that seconds and counts weigh the same and variance inflation can be read off.
//! A second pass makes Q orthogonal to rounding whatever the columns are (Giraud, Langou and Rozložník 2005), which a few
//! columns are small enough for; the normal equations would square their condition.

/// What makes the squared residuals least.
pub(super) struct Solved {
    /// One a column, in its own unit.
    pub coefficients: Vec<f64>,
    /// The variance inflation factor of each column.
    pub inflations: Vec<f64>,
    /// Orthonormal columns that span those given.
    q: Vec<Vec<f64>>,
    /// The inverse of R, row by row, for the columns as they were given.
    inverse: Vec<Vec<f64>>,
}

/// Whether values around their mean are more than what rounding leaves of values of that size.
pub(super) fn varies(centred: &[f64], scale: f64) -> bool {
    length(centred) > scale * 1e-12 * (centred.len() as f64).sqrt()
}

/// Least squares of columns that vary; all are around their means.
pub(super) fn solve(columns: &[Vec<f64>], outcome: &[f64]) -> Solved {
    let lengths: Vec<f64> = columns.iter().map(|column| length(column)).collect();
    let mut q: Vec<Vec<f64>> = Vec::with_capacity(columns.len());
    let mut r = vec![vec![0.0; columns.len()]; columns.len()];
    for (number, (column, scale)) in columns.iter().zip(&lengths).enumerate() {
        let mut rest: Vec<f64> = column.iter().map(|value| value / scale).collect();
        for _ in 0..2 {
            for (before, direction) in q.iter().enumerate() {
                let share = dot(direction, &rest);
                r[before][number] += share;
                rest.iter_mut()
                    .zip(direction)
                    .for_each(|(value, along)| *value -= share * along);
            }
        }
        let left = length(&rest);
        r[number][number] = left;
        // Where nothing is left the division makes it infinite or no number, and so the inflation below.
        rest.iter_mut().for_each(|value| *value /= left);
        q.push(rest);
    }
    let mut inverse = inverse(&r);
    // R^-1 R^-T is the inverse of the columns' correlations; the inflations are its diagonal.
    let inflations = inverse.iter().map(|row| dot(row, row)).map(|inflation| {
        if inflation.is_nan() {
            f64::INFINITY
        } else {
            inflation
        }
    });
    let inflations = inflations.collect();
    for (row, scale) in inverse.iter_mut().zip(&lengths) {
        row.iter_mut().for_each(|value| *value /= scale);
    }
    let along: Vec<f64> = q.iter().map(|direction| dot(direction, outcome)).collect();
    let coefficients = inverse.iter().map(|row| dot(row, &along)).collect();
    Solved {
        coefficients,
        inflations,
        q,
        inverse,
    }
}

impl Solved {
    /// The column that the others tell best, and its inflation.
    pub fn worst_inflation(&self) -> Option<(usize, f64)> {
        self.inflations
            .iter()
            .copied()
            .enumerate()
            .max_by(|(_, a), (_, b)| a.total_cmp(b))
    }

    /// What the columns leave of the outcome.
    pub fn residuals(&self, outcome: &[f64]) -> Vec<f64> {
        let mut left = outcome.to_vec();
        for direction in &self.q {
            let share = dot(direction, &left);
            left.iter_mut()
                .zip(direction)
                .for_each(|(value, along)| *value -= share * along);
        }
        left
    }

    /// How far two samples determine each other's fitted value, through the columns.
    pub fn shared_leverage(&self, a: usize, b: usize) -> f64 {
        self.q
            .iter()
            .map(|direction| direction[a] * direction[b])
            .sum()
    }

    /// What each sample's outcome adds to a coefficient: a row of (X'X)^-1 X'.
    pub fn influence(&self, coefficient: usize) -> Vec<f64> {
        let row = &self.inverse[coefficient];
        let samples = self.q.first().map_or(0, Vec::len);
        (0..samples)
            .map(|sample| row.iter().zip(&self.q).map(|(a, q)| a * q[sample]).sum())
            .collect()
    }
}

/// The inverse of an upper triangle, row by row from below: R times it is the identity.
fn inverse(r: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut inverse = vec![vec![0.0; r.len()]; r.len()];
    for (number, row) in r.iter().enumerate().rev() {
        let mut solved = vec![0.0; r.len()];
        solved[number] = 1.0;
        for (share, below) in row.iter().zip(&inverse).skip(number + 1) {
            solved
                .iter_mut()
                .zip(below)
                .for_each(|(value, below)| *value -= share * below);
        }
        solved.iter_mut().for_each(|value| *value /= row[number]);
        inverse[number] = solved;
    }
    inverse
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn length(values: &[f64]) -> f64 {
    dot(values, values).sqrt()
}
