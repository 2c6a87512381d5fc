#include "server/http/http_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace sft::server {
namespace {

std::string_view StatusText(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
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
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Service Unavailable";
  }
}

}  // namespace

std::string HeadOf(const HttpResponse& response, const HttpFraming& framing) {
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, StatusText(response.status));
  if (!response.content_type.empty()) {
    head += fmt::format("Content-Type: {}\r\n", response.content_type);
  }
  for (const auto& [name, value] : response.fields) head += fmt::format("{}: {}\r\n", name, value);
  if (framing.length.has_value() && response.status != 204 && response.status != 304) {
    head += fmt::format("Content-Length: {}\r\n", *framing.length);
  }
  if (framing.chunked) head += "Transfer-Encoding: chunked\r\n";
  if (framing.closes) head += "Connection: close\r\n";
  return head.append(framing.fields) + "\r\n";
}

std::string_view HttpRequest::Field(std::string_view name) const {
  const auto found = std::ranges::find(fields, name, &std::pair<std::string, std::string>::first);
  return found == fields.end() ? std::string_view() : std::string_view(found->second);
}

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::string HostOnly(std::string_view value) {
  if (!value.empty() && value.front() == '[') {
    const size_t end = value.find(']');
    return end == value.npos ? "" : LowerCase(value.substr(1, end - 1));
  }
  return LowerCase(value.substr(0, value.find(':')));
}

}  // namespace sft::server
