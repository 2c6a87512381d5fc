#pragma once

#include <cstdint>
#include <vector>

namespace sft::engine {

// The later half of each document's tokens.
struct LastQueries {
  std::vector<int64_t> lengths;  // how many, by document
  std::vector<int64_t> numbers;  // which, among the tokens of all documents

  explicit LastQueries(const std::vector<int64_t>& documents) {
    int64_t first = 0;
    for (const int64_t length : documents) {
      lengths.push_back((length + 1) / 2);
      for (int64_t i = length - lengths.back(); i < length; ++i) numbers.push_back(first + i);
      first += length;
    }
  }
};

}  // namespace sft::engine
