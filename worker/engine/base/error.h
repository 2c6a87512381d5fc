#pragma once

#include <stdexcept>
#include <string>
#include <utility>

// The engine reports failure by throwing; sft-rank catches at the top and writes a `fatal` event
// whose domain is the class thrown. A message names what is wrong, where (file, line, key, tensor)
// and what to do about it.

namespace sft::engine {

// Never thrown itself: one of those below says who has to act.
class Error : public std::runtime_error {
 public:
  // `code`: short stable name for programs ("nan_loss"), empty for the domain's own; `advice`: what
  // to do, when it is not already said by the message.
  explicit Error(const std::string& message, std::string code = {}, std::string advice = {})
      : std::runtime_error(message), code_(std::move(code)), advice_(std::move(advice)) {}

  const std::string& code() const { return code_; }
  const std::string& advice() const { return advice_; }

 private:
  std::string code_;
  std::string advice_;
};

// The user's input cannot be used: data, model directory, configuration, a loss that is not
// finite. The job ends with the user verdict and is not tried again.
class UserError : public Error {
 public:
  using Error::Error;
};

// The node or the network failed: disk full, peer gone, port taken, device lost. The same job may
// succeed at another time or place.
class InfrastructureError : public Error {
 public:
  using Error::Error;
};

// A broken invariant or a failing library: a fault of ours, worth a report.
class InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace sft::engine
