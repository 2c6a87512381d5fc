#pragma once

#include <stdexcept>
#include <string>

// The engine reports failure by throwing; sft-rank catches at the top and writes a `fatal` event.
// A message names what is wrong, where (file, line, key, tensor) and what to do about it.

namespace sft::engine {

// Never thrown itself: one of the two below says who has to act.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What the user gave cannot be used: data, model directory, configuration, a full disk. The job
// ends with the user verdict and is not tried again.
class UserError : public Error {
 public:
  using Error::Error;
};

// A broken invariant or a failing library: a fault of ours or of the machine, worth a report.
class InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace sft::engine
