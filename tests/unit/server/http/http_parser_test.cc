// What is read of a request, and what is refused: each form by its bytes.

#include "server/http/http_parser.h"

#include <gtest/gtest.h>

#include "server/http/feed_query.h"
#include "server/http/percent.h"

namespace sft::server {
namespace {

// The status with which a whole request is refused; 200: it was read. 1: more is waited for.
int Read(const std::string& bytes, std::string* body = nullptr) {
  size_t scanned = 0;
  const auto end = HttpParser::FindHead(bytes, scanned);
  if (const auto* refusal = std::get_if<HttpResponse>(&end)) return refusal->status;
  const size_t size = std::get<size_t>(end);
  if (size == 0) return 1;
  HttpParser parser;
  const auto head = parser.Head(std::string_view(bytes).substr(0, size));
  if (const auto* refusal = std::get_if<HttpResponse>(&head)) return refusal->status;
  std::string read;
  const auto used = parser.Body(std::string_view(bytes).substr(size), read);
  if (body != nullptr) *body = read;
  if (!used.ok()) return 400;
  return parser.done() ? 200 : 1;
}

std::string Post(const std::string& fields, const std::string& body = "") {
  return "POST /x HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n" + body;
}

TEST(HttpParserTest, ReadsHeadAndBody) {
  HttpParser parser;
  const std::string head =
      "POST /a/b%20c?q=1&r HTTP/1.1\r\nHOST: localhost:7071\r\nX-Thing: \t two words \t\r\n"
      "Content-Length: 5\r\nAccept:\r\n\r\n";
  const auto read = parser.Head(head);
  const auto& request = std::get<HttpRequest>(read);
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.path, "/a/b%20c");
  EXPECT_EQ(request.query, "q=1&r");
  EXPECT_EQ(request.Field("host"), "localhost:7071");
  EXPECT_EQ(request.Field("x-thing"), "two words");
  EXPECT_EQ(request.Field("accept"), "");
  EXPECT_EQ(request.length, 5u);
  EXPECT_TRUE(request.keeps);
  std::string body;
  EXPECT_EQ(parser.Body("helloGET /", body).value(), 5u);
  EXPECT_EQ(body, "hello");
  EXPECT_TRUE(parser.done());
}

TEST(HttpParserTest, RefusesWhatCanBeReadInTwoWays) {
  const std::string host = "Host: localhost\r\n";
  for (const auto& [status, bytes] : std::vector<std::pair<int, std::string>>{
           {400, Post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n")},
           {400, Post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n")},
           {400, Post("Content-Length: 5\r\nContent-Length: 6\r\n", "hello")},
           {400, Post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello")},
           {400, Post("Content-Length: 5, 5\r\n", "hello")},
           {400, Post("Content-Length: five\r\n", "hello")},
           {400, Post("Content-Length: -5\r\n", "hello")},
           {400, Post("Content-Length: +5\r\n", "hello")},
           {400, Post("Content-Length: 0x5\r\n", "hello")},
           {400, Post("Content-Length: 99999999999999999999999\r\n", "hello")},
           {400, Post("Content-Length: \r\n", "hello")},
           {400, Post("Transfer-Encoding: gzip\r\n")},
           {400, Post("Transfer-Encoding: chunked, gzip\r\n")},
           {400, Post("Transfer-Encoding: gzip, chunked\r\nTransfer-Encoding: chunked\r\n")},
           {400, "POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
           {400, "GET / HTTP/1.1\n" + host + "\r\n"},
           {400, "GET / HTTP/1.1\r\nHost: localhost\n\r\n"},
           {400, "GET / HTTP/1.1\r\n" + host + "\n"},
           {400, "GET / HTTP/1.1\rX\r\n" + host + "\r\n"},
           {400, "GET / HTTP/1.1\r\n" + host + "X: a\r\n b\r\n\r\n"},
           {400, "GET / HTTP/1.1\r\n" + host + "X: a\r\n\tb\r\n\r\n"},
           {400, "GET / HTTP/1.1\r\n" + host + "X : a\r\n\r\n"},
           {400, "GET / HTTP/1.1\r\n" + host + " X: a\r\n\r\n"},
           {400, "GET / HTTP/1.1\r\n" + host + "X\r\n\r\n"},
           {400, "GET / HTTP/1.1\r\n" + host + ": a\r\n\r\n"},
           {400, "GET / HTTP/1.1\r\n" + host + "X(Y): a\r\n\r\n"},
           {400, "GET / HTTP/1.1\r\n" + host + "X: a\x01z\r\n\r\n"},
           {400, std::string("GET / HTTP/1.1\r\n" + host + "X: a") + '\0' + "b\r\n\r\n"},
           {400, "GET / HTTP/1.1\r\n\r\n"},
           {400, "GET / HTTP/1.1\r\n" + host + host + "\r\n"},
           {400, "GET http://evil.example/ HTTP/1.1\r\n" + host + "\r\n"},
           {400, "OPTIONS * HTTP/1.1\r\n" + host + "\r\n"},
           {400, "CONNECT evil.example:443 HTTP/1.1\r\n" + host + "\r\n"},
           {400, "GET /a%00b HTTP/1.1\r\n" + host + "\r\n"},
           {400, "GET /a%2 HTTP/1.1\r\n" + host + "\r\n"},
           {400, "GET /a%zz HTTP/1.1\r\n" + host + "\r\n"},
           {400, "GET /../etc/passwd HTTP/1.1\r\n" + host + "\r\n"},
           {400, "GET /a/%2e%2E/b HTTP/1.1\r\n" + host + "\r\n"},
           {400, "GET /a/..%2Fb HTTP/1.1\r\n" + host + "\r\n"},
           {400, "GET /a/. HTTP/1.1\r\n" + host + "\r\n"},
           {400, "GET /a#b HTTP/1.1\r\n" + host + "\r\n"},
           {400, "GET /\xc3\xa4 HTTP/1.1\r\n" + host + "\r\n"},
           {400, "GET  / HTTP/1.1\r\n" + host + "\r\n"},
           {505, "GET / \r\n" + host + "\r\n"},
           {400, "G(T / HTTP/1.1\r\n" + host + "\r\n"},
           {400, "\r\nGET / HTTP/1.1\r\n" + host + "\r\n"},
           {400, "rubbish\r\n\r\n"},
           {400, "\x16\x03\x01\x02\n"},
           {505, "GET / HTTP/2.0\r\n" + host + "\r\n"},
           {505, "GET / HTTP/0.9\r\n" + host + "\r\n"},
           {431,
            "GET /" + std::string(HttpParser::kMaxHead, 'x') + " HTTP/1.1\r\n" + host + "\r\n"},
           {431, "GET /" + std::string(HttpParser::kMaxHead, 'x')}}) {
    EXPECT_EQ(Read(bytes), status) << bytes.substr(0, 200);
  }
}

TEST(HttpParserTest, BoundsTheNumberOfFields) {
  const auto with = [](size_t count) {
    std::string fields;
    for (size_t i = 0; i < count; ++i) fields += "X: a\r\n";
    return "GET / HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n";
  };
  EXPECT_EQ(Read(with(HttpParser::kMaxFields - 1)), 200);
  EXPECT_EQ(Read(with(HttpParser::kMaxFields)), 431);
}

TEST(HttpParserTest, ReadsBodiesInChunks) {
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  std::string body;
  EXPECT_EQ(
      Read(Post(chunked, "5\r\nhello\r\n1;name=\"x\"\r\n!\r\n0\r\nTrailer: x\r\n\r\n"), &body),
      200);
  EXPECT_EQ(body, "hello!");
  EXPECT_EQ(Read(Post(chunked, "5\r\nhel")), 1);
  EXPECT_EQ(Read(Post(chunked, "000\r\n\r\n")), 200);
  for (const char* bad : {"{}", "x\r\nhello\r\n0\r\n\r\n", "-1\r\n", "5\r\nhelloX0\r\n\r\n",
                          "5 \nhello", "11111111111111111\r\nx"}) {
    EXPECT_EQ(Read(Post(chunked, bad)), 400) << bad;
  }
  const auto extended = [&](size_t size) {
    return Read(Post(chunked, "1;" + std::string(size - 1, 'x') + "\r\n!\r\n0\r\n\r\n"));
  };
  EXPECT_EQ(extended(HttpParser::kMaxExtensions), 200);
  EXPECT_EQ(extended(HttpParser::kMaxExtensions + 1), 400);
}

// However a request is cut into pieces, the same is read of it.
TEST(HttpParserTest, EachSplitIsReadAlike) {
  const std::string bytes = Post("Transfer-Encoding: chunked\r\nX: y\r\n",
                                 "3;a=b\r\nhel\r\n2\r\nlo\r\n0\r\nT: u\r\n\r\n");
  for (size_t split = 1; split < bytes.size(); ++split) {
    size_t scanned = 0, head_size = 0;
    std::string so_far, body;
    HttpParser parser;
    for (const std::string& piece : {bytes.substr(0, split), bytes.substr(split)}) {
      so_far += piece;
      if (head_size == 0) {
        const auto end = HttpParser::FindHead(so_far, scanned);
        ASSERT_TRUE(std::holds_alternative<size_t>(end)) << split;
        head_size = std::get<size_t>(end);
        if (head_size == 0) continue;
        const auto head = parser.Head(std::string_view(so_far).substr(0, head_size));
        ASSERT_TRUE(std::holds_alternative<HttpRequest>(head)) << split;
        so_far.erase(0, head_size);
      }
      const auto used = parser.Body(so_far, body);
      ASSERT_TRUE(used.ok()) << split << used.status();
      so_far.erase(0, *used);
    }
    EXPECT_TRUE(parser.done()) << split;
    EXPECT_EQ(body, "hello") << split;
    EXPECT_EQ(so_far, "") << split;
  }
}

// The end of a body may come byte by byte, and be asked for again and again.
TEST(HttpParserTest, TheLastChunkMayComeByteByByte) {
  const std::string head = Post("Transfer-Encoding: chunked\r\n");
  HttpParser parser;
  ASSERT_TRUE(std::holds_alternative<HttpRequest>(parser.Head(head)));
  std::string so_far, body;
  for (const char byte : std::string("2;x\r\nhi\r\n0\r\nT: u\r\n\r\n")) {
    EXPECT_FALSE(parser.done());
    so_far += byte;
    for (int i = 0; i < 3; ++i) {
      const auto used = parser.Body(so_far, body);
      ASSERT_TRUE(used.ok()) << used.status();
      so_far.erase(0, *used);
    }
  }
  EXPECT_TRUE(parser.done());
  EXPECT_EQ(body, "hi");
}

TEST(PercentTest, DecodesWhatIsCodedAndNothingElse) {
  EXPECT_EQ(PercentDecoded("a%2Fb%3a+"), "a/b:+");
  for (const char* bad : {"%", "%2", "%g0", "%0g", "a%00"}) {
    EXPECT_FALSE(PercentDecoded(bad).has_value()) << bad;
  }
  using Values = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(ReadQuery("a=1&b=x+y%26&&c&=d"),
            (Values{{"a", "1"}, {"b", "x y&"}, {"c", ""}, {"", "d"}}));
  EXPECT_FALSE(ReadQuery("a=%").has_value());
  std::string many;
  for (int i = 0; i < 101; ++i) many += "a=1&";
  EXPECT_FALSE(ReadQuery(many).has_value());
}

TEST(PercentTest, FindsACookie) {
  EXPECT_EQ(CookieIn("a=1; __Host-sft=abc ;b=2", "__Host-sft"), "abc");
  EXPECT_EQ(CookieIn("__Host-sft=", "__Host-sft"), "");
  EXPECT_EQ(CookieIn("x__Host-sft=abc", "__Host-sft"), std::nullopt);
  EXPECT_EQ(CookieIn("a=b;a=b", "a"), "b");
  EXPECT_EQ(CookieIn("a=b; a=c", "a"), std::nullopt);
  EXPECT_EQ(CookieIn("", "a"), std::nullopt);
}

TEST(FeedQueryTest, ACursorGoesOnFromWhereItWas) {
  const std::string query = "job=job-x&metrics=5&log=0:10&log=3:0&jobs=1";
  const FeedQuery first = ReadFeedQuery(query, "", "life").value();
  EXPECT_EQ(first.job, "job-x");
  EXPECT_EQ(first.metrics, 5);
  ASSERT_EQ(first.logs.size(), 2u);
  EXPECT_EQ(first.logs[1].rank, 3);
  EXPECT_FALSE(first.nodes.has_value());
  FeedQuery later = first;
  later.metrics = 900;
  later.logs[0] = {0, 2, 4096};
  later.jobs->place = 17;
  const std::string cursor = CursorOf(later, "life");
  const FeedQuery again = ReadFeedQuery(query, cursor, "life").value();
  EXPECT_EQ(CursorOf(again, "life"), cursor);
  EXPECT_EQ(again.logs[0].attempt, 2);
  EXPECT_FALSE(again.jobs->lost);
  EXPECT_TRUE(ReadFeedQuery(query, cursor, "another").value().jobs->lost);
  EXPECT_EQ(CursorOf(ReadFeedQuery(query + "&cursor=m7", "", "life").value(), "life").substr(0, 2),
            "m7");
}

TEST(FeedQueryTest, RefusesWhatItCannotRead) {
  for (const char* query : {"", "metrics=0", "job=x&metrics=-1", "job=x&metrics=a", "job=x&log=0",
                            "job=x&log=0:-1", "job=x&log=0:1:2", "jobs=2", "nonsense=1", "job=%"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReadFeedQuery(query, "", "life").status())) << query;
  }
  for (const std::string& cursor : {std::string("x1"), std::string("m"), std::string("m-1"),
                                    std::string("l0:1"), std::string("j1"), std::string("m1;;m2"),
                                    std::string(5000, 'm'), std::string("m99999999999999999999")}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReadFeedQuery("job=x&metrics=0", cursor, "life").status()))
        << cursor;
  }
}

}  // namespace
}  // namespace sft::server
