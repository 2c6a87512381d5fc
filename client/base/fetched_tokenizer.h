#pragma once

#include <string>

#include "client/base/connection.h"

namespace sft::client {

// A model's tokenizer and chat template, fetched from a node that has the model: a folder of this
// machine, which is removed with this object.
class FetchedTokenizer {
 public:
  // `model`: as a job names it. NOT_FOUND: no connected node has it; UNAVAILABLE at once, without
  // another try, where the server cannot be reached.
  static absl::StatusOr<FetchedTokenizer> Fetch(Connection& connection, const std::string& model);
  FetchedTokenizer(FetchedTokenizer&& other) noexcept;
  FetchedTokenizer& operator=(FetchedTokenizer&& other) noexcept;
  ~FetchedTokenizer();

  const std::string& folder() const { return folder_; }

 private:
  FetchedTokenizer() = default;
  std::string folder_;
};

}  // namespace sft::client
