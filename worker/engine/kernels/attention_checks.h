#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "worker/engine/kernels/op_types.h"

// What all implementations of attention have of their documents.

namespace sft::engine {

// A document's tokens among those of q and of k; its queries are the last of its tokens.
struct AttentionDocument {
  int64_t query, queries, key, keys;
  // Tokens before the first query.
  int64_t before() const { return keys - queries; }
};

inline std::vector<AttentionDocument> AttentionDocumentsOf(const ops::Documents& documents) {
  std::vector<AttentionDocument> all;
  const at::IntArrayRef keys = documents.keys();
  int64_t query = 0, key = 0;
  for (size_t i = 0; i < documents.lengths.size(); ++i) {
    all.push_back({query, documents.lengths[i], key, keys[i]});
    query += documents.lengths[i];
    key += keys[i];
  }
  return all;
}

// Throws unless the tensors and documents fit each other.
inline void CheckAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const ops::Documents& documents) {
  TORCH_CHECK(q.dim() == 3 && k.dim() == 3 && v.sizes() == k.sizes() && q.size(2) == k.size(2),
              "attention: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes(), " do not fit");
  TORCH_CHECK(k.size(1) > 0 && q.size(1) % k.size(1) == 0, "attention: ", q.size(1),
              " query heads for ", k.size(1), " key heads");
  const at::IntArrayRef lengths = documents.lengths, keys = documents.keys();
  TORCH_CHECK(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) == q.size(0),
              "attention: document lengths do not sum to ", q.size(0), " tokens");
  TORCH_CHECK(keys.size() == lengths.size() && documents.key_tokens() == k.size(0),
              "attention: the documents' keys are not ", k.size(0), " tokens of ", lengths.size(),
              " documents");
  for (size_t i = 0; i < lengths.size(); ++i) {
    TORCH_CHECK(keys[i] >= lengths[i], "attention: document ", i, " has ", lengths[i],
                " queries and ", keys[i], " keys");
  }
}

}  // namespace sft::engine
