#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "common/base/status.h"
#include "server/http/http_request.h"

namespace sft::server {

// Reads one request, head and body, from the bytes of a connection: Boost.Beast's parser, and on
// top of what that refuses all whose meaning a proxy and this server could read differently. The
// only place that knows of Boost. Of one thread.
class HttpParser {
 public:
  // A larger head, or one of more fields, is answered with 431.
  static constexpr size_t kMaxHead = 16 << 10, kMaxFields = 100;
  // A chunk's extensions, which nobody uses.
  static constexpr size_t kMaxExtensions = 256;

  HttpParser();
  ~HttpParser();

  // Where the head ends that `bytes` begin with, behind its empty line; 0: it is not all there.
  // `scanned` is what earlier calls have looked at. A refusal where it can be no head any more.
  static std::variant<size_t, HttpResponse> FindHead(std::string_view bytes, size_t& scanned);

  // The head, with its empty line; or how the request is refused. Once.
  std::variant<HttpRequest, HttpResponse> Head(std::string_view head);

  // After the head: takes bytes of the body, appends what they hold to `body` and returns how many
  // were taken; the others are to be given again with what follows them. INVALID_ARGUMENT for bytes
  // that are none.
  absl::StatusOr<size_t> Body(std::string_view bytes, std::string& body);
  // Whether the request is whole.
  bool done() const;

 private:
  class Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace sft::server
