#pragma once

#include <cstddef>
#include <string_view>

namespace sft {

// Optimal string alignment distance: insertions, deletions, changes, swaps of neighbours.
size_t EditDistance(std::string_view a, std::string_view b);

// Up to which distance another word may have been meant by `word`: a third of its letters, so that
// a short word is not taken for just any other one.
size_t SuggestionLimit(std::string_view word);

}  // namespace sft
