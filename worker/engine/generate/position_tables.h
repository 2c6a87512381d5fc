#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/engine/model/decoder.h"

namespace sft::engine {

// The rotations of every position so far, of documents that the model's ropes take as short ones
// and as long ones (Decoder::depends_on_length). Made a few positions at a time, so that those of a
// position have the same bits in every process.
class PositionTables {
 public:
  // Borrows `decoder`. `long_from`: documents of more tokens are long ones; 0: none are.
  PositionTables(const Decoder& decoder, int64_t long_from, at::Device device)
      : decoder_(decoder), long_from_(long_from), device_(device) {}

  bool IsLong(int64_t tokens) const { return long_from_ > 0 && tokens > long_from_; }
  // Makes the tables of positions below `count`. True if they have moved.
  bool Reserve(int64_t count);
  // One of the model's each: those of `positions` int64 [T], which are below what was reserved.
  // `is_long` bool [T], read only where there are long documents.
  std::vector<RopeTables> At(const at::Tensor& positions, const at::Tensor& is_long) const;

 private:
  // The tables up to position `count`, of which `present` are there.
  std::vector<RopeTables> Make(const std::vector<RopeTables>& present, int64_t count,
                               bool long_document) const;

  const Decoder& decoder_;
  int64_t long_from_ = 0;
  at::Device device_;
  int64_t present_ = 0;
  std::vector<RopeTables> of_short_, of_long_;
};

}  // namespace sft::engine
