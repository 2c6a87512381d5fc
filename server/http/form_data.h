#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace sft::server {

// The boundary that a Content-Type of multipart/form-data names (RFC 7578); empty: it is none, or
// names one that is not allowed.
std::string BoundaryIn(std::string_view content_type);

// Reads a body of multipart/form-data in pieces, of which it keeps one. Not thread-safe.
class FormData {
 public:
  // The next bytes of the body; none: that was all.
  using Next = std::function<absl::StatusOr<std::string>()>;
  FormData(std::string_view boundary, Next next);

  // The head of a part.
  static constexpr size_t kMostHead = 8 << 10;

  struct Part {
    std::string name;
    std::optional<std::string> file_name;  // as it was sent; absent: the part is no file
  };
  // The next part, once the one before is read to its end; nullopt behind the last one.
  // INVALID_ARGUMENT for what is no such body, or ends too early; errors of `next`.
  absl::StatusOr<std::optional<Part>> NextPart();
  // The next bytes of the part; none: that was its end.
  absl::StatusOr<std::string> ReadSome();
  // All of the part. INVALID_ARGUMENT beyond `most` bytes.
  absl::StatusOr<std::string> ReadText(size_t most);

 private:
  // Has more bytes in buffer_. INVALID_ARGUMENT where there are none.
  absl::Status Fill();
  absl::StatusOr<Part> ReadHead();

  const std::string delimiter_;  // with the line's end before it
  const Next next_;
  std::string buffer_;
  bool in_part_ = false, over_ = false;
};

}  // namespace sft::server
