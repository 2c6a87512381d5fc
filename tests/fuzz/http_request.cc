// What a caller sends over HTTP: a request's head and body, in two pieces, and what is read of its
// query, its cookies and the feed's cursor.

#include "server/http/feed_query.h"
#include "server/http/form_data.h"
#include "server/http/http_parser.h"
#include "server/http/percent.h"
#include "tests/fuzz/input.h"

namespace {

using sft::server::HttpParser;

// What was read of a request that came in two pieces; empty: it was refused, or is not whole.
std::string ReadInTwo(std::string_view bytes, size_t split) {
  HttpParser parser;
  std::string so_far, body, method;
  size_t scanned = 0;
  bool head_read = false;
  for (const std::string_view piece : {bytes.substr(0, split), bytes.substr(split)}) {
    so_far += piece;
    if (!head_read) {
      const auto end = HttpParser::FindHead(so_far, scanned);
      if (!std::holds_alternative<size_t>(end)) return "";
      const size_t size = std::get<size_t>(end);
      if (size == 0) continue;
      const auto head = parser.Head(std::string_view(so_far).substr(0, size));
      if (!std::holds_alternative<sft::server::HttpRequest>(head)) return "";
      const auto& request = std::get<sft::server::HttpRequest>(head);
      sft::fuzz::Require(request.path.starts_with("/") && sft::server::IsPlainPath(request.path));
      sft::fuzz::Require(!(request.chunked && request.length.has_value()));
      method = request.method + " " + request.path + "?" + request.query;
      so_far.erase(0, size);
      head_read = true;
    }
    const auto used = parser.Body(so_far, body);
    if (!used.ok()) return "";
    so_far.erase(0, *used);
  }
  return parser.done() ? method + "\n" + body : "";
}

// The parts of a form that came in two pieces; empty: it is none.
std::string FormInTwo(const std::string& bytes, size_t split) {
  std::vector<std::string> pieces = {bytes.substr(0, split), bytes.substr(split)};
  std::erase(pieces, "");
  size_t next = 0;
  sft::server::FormData form("b", [&]() -> absl::StatusOr<std::string> {
    return next < pieces.size() ? pieces[next++] : std::string();
  });
  std::string all;
  while (true) {
    const auto part = form.NextPart();
    if (!part.ok()) return "";
    if (!part->has_value()) return all + "\nend";
    const auto text = form.ReadText(bytes.size());
    if (!text.ok()) return "";
    all += (*part)->name + "|" + (*part)->file_name.value_or("-") + "|" + *text + "\n";
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sft::server;  // NOLINT: one function
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::string whole = ReadInTwo(text, size);
  for (const size_t split : {size / 2, size / 3, size - size / 4}) {
    sft::fuzz::Require(ReadInTwo(text, split) == whole);
  }
  if (const auto decoded = PercentDecoded(text); decoded.has_value()) {
    sft::fuzz::Require(decoded->size() <= size && text.find("%00") == text.npos);
  }
  (void)BoundaryIn(text);
  const std::string form = FormInTwo(text, size);
  for (const size_t split : {size / 2, size / 3, size - size / 4}) {
    sft::fuzz::Require(FormInTwo(text, split) == form);
  }
  (void)ReadQuery(text);
  (void)CookieIn(text, "a");
  const auto feed = ReadFeedQuery("job=x&metrics=0&log=0:0&jobs=1", text, "life");
  if (feed.ok()) {
    const std::string cursor = CursorOf(*feed, "life");
    sft::fuzz::Require(CursorOf(*ReadFeedQuery("job=x&metrics=0&log=0:0&jobs=1", cursor, "life"),
                                "life") == cursor);
  }
  (void)ReadFeedQuery(text, "", "life");
  return 0;
}
