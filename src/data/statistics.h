// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "data/data.h"

namespace deepspeed::data {

/// Entropies of the tokens of a source by their own counts, in nats a token: what a model that knows only these counts
/// reaches as loss. Sources of more than 1024 ids take 8 bytes of memory a token.

/// H(token).
double unigram_entropy(const TokenSource& source);
/// H(next | current) over the size() - 1 pairs of neighbours; 0 for fewer than two tokens.
double bigram_entropy(const TokenSource& source);

}  // namespace deepspeed::data
