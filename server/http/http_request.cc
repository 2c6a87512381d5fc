#include "server/http/http_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "common/rpc/endpoint.h"

namespace sft::server {
namespace {

std::string_view StatusText(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 421:
      return "Misdirected Request";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    default:
      return "Service Unavailable";
  }
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

// Removes blanks at both ends.
std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Strips the port and the brackets from "name:7071" or "[::1]:7071".
std::string HostOnly(std::string_view value) {
  if (!value.empty() && value.front() == '[') {
    const size_t end = value.find(']');
    return end == value.npos ? "" : Lower(value.substr(1, end - 1));
  }
  return Lower(value.substr(0, value.find(':')));
}

HttpRequest Refuse(int status, std::string_view why) {
  HttpRequest request;
  request.refused = HttpResponse{status, HttpResponse().content_type, fmt::format("{}\n", why)};
  return request;
}

using Field = std::pair<std::string, std::string>;

// Nullopt if a line is not a header field.
std::optional<std::vector<Field>> FieldsOf(std::string_view lines) {
  std::vector<Field> fields;
  while (!lines.empty()) {
    const size_t end = lines.find("\r\n");
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(end == lines.npos ? lines.size() : end + 2);
    if (line.empty()) break;
    const size_t colon = line.find(':');
    if (colon == line.npos) return std::nullopt;
    fields.emplace_back(Lower(line.substr(0, colon)), Trim(line.substr(colon + 1)));
  }
  return fields;
}

std::string HeadOf(const HttpResponse& response) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", response.status,
                                 StatusText(response.status), response.content_type);
  for (const auto& [name, value] : response.fields) head += fmt::format("{}: {}\r\n", name, value);
  return head + "Connection: close\r\n";
}

}  // namespace

std::string ToBytes(const HttpResponse& response) {
  return fmt::format("{}Content-Length: {}\r\n\r\n{}", HeadOf(response), response.body.size(),
                     response.body);
}

std::string ChunkedHead(const HttpResponse& response) {
  return HeadOf(response) + "Transfer-Encoding: chunked\r\n\r\n";
}

std::string EndlessHead(const HttpResponse& response) { return HeadOf(response) + "\r\n"; }

std::string_view HttpRequest::Field(std::string_view name) const {
  const auto found = std::ranges::find(fields, name, &std::pair<std::string, std::string>::first);
  return found == fields.end() ? std::string_view() : std::string_view(found->second);
}

HttpRequest ParseRequest(std::string_view head, std::string_view host) {
  const size_t line_end = head.find("\r\n");
  const std::string_view line = head.substr(0, line_end);
  const size_t method_end = line.find(' ');
  const size_t path_end = method_end == line.npos ? line.npos : line.find(' ', method_end + 1);
  const std::string_view version =
      path_end == line.npos ? std::string_view() : line.substr(path_end + 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return Refuse(400, "this is not an HTTP/1.1 request");
  }
  auto fields = FieldsOf(line_end == head.npos ? std::string_view() : head.substr(line_end + 2));
  const auto hosts = !fields.has_value() ? 0 : std::ranges::count(*fields, "host", &Field::first);
  // HTTP/1.0 has no Host; a browser always sends one.
  if (!fields.has_value() || hosts > 1 || (hosts == 0 && version == "HTTP/1.1")) {
    return Refuse(400, "a request has one Host");
  }
  HttpRequest request;
  request.method = line.substr(0, method_end);
  request.version = version;
  request.fields = *std::move(fields);
  if (hosts > 0) {
    const std::string asked = HostOnly(request.Field("host"));
    if (!rpc::IsLoopback(asked) && asked != HostOnly(host)) {
      return Refuse(421, "this server answers to the names of loopback: use http://127.0.0.1");
    }
  }
  const std::string_view path = line.substr(method_end + 1, path_end - method_end - 1);
  if (path.empty() || path.front() != '/') return Refuse(400, "a path begins with /");
  request.path = path.substr(0, path.find('?'));
  return request;
}

}  // namespace sft::server
