#pragma once

#include <cstddef>
#include <string_view>

namespace sft {

// Optimal string alignment distance: insertions, deletions, changes, swaps of neighbours.
size_t EditDistance(std::string_view a, std::string_view b);

// The largest edit distance at which another word is suggested for `word`: a third of its letters,
// so that a short word does not match just any other one.
size_t SuggestionLimit(std::string_view word);

}  // namespace sft
