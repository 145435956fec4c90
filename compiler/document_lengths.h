// How long packed documents are, for the price of attention: what tools/tokens --lengths writes, a
// line "TOKENS DOCUMENTS" for each length.
#pragma once

#include <string_view>

#include "schema/base/status.h"

namespace pp {

// The length of the document that a mean token is in, the sum of their squares by the sum of them,
// rounded: with as many tokens each, documents have as many pairs of a query and a key. One that is
// longer than a sequence counts as whole sequences and a rest. Invalid: what line is wrong.
Result<int> MeanDocument(std::string_view text, int sequence_length);

}  // namespace pp
