// In this package, because Iceberg's own classes for tests are not public.
package org.apache.iceberg.rest;

import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.function.Consumer;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.exceptions.NotAuthorizedException;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.responses.ConfigResponse;
import org.apache.iceberg.rest.responses.ErrorResponse;
import org.apache.iceberg.rest.responses.LoadTableResponse;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * Iceberg's own REST handlers on 127.0.0.1. All paths but those of the configuration and of the tokens have a
 * prefix. A client needs a token, which it gets for one client and one secret. With each table it gets the keys
 * of the store, unless the files are on the disk. The client READER has the same secret, and may only read.
 * Argument: a file of properties.
 */
public class RestServer {
  static final String PREFIX = "own-prefix";
  static final String READER = "reader-of-rest";
  static final String TOKEN = "Bearer client-credentials-token:sub=";

  static class Adapter extends RESTCatalogAdapter {
    final String client, secret;
    final Map<String, String> keys;

    Adapter(Catalog catalog, String client, String secret, Map<String, String> keys) {
      super(catalog);
      this.client = client;
      this.secret = secret;
      this.keys = keys;
    }

    @Override
    public <T extends RESTResponse> T handleRequest(
        Route route, Map<String, String> vars, Object body, Class<T> type) {
      if (route == Route.TOKENS) {
        Map<?, ?> form = (Map<?, ?>) body;
        boolean known = client.equals(form.get("client_id")) || READER.equals(form.get("client_id"));
        if (!known || !secret.equals(form.get("client_secret"))) {
          throw new NotAuthorizedException("There is no such client, or its secret is another one");
        }
      }
      T found = super.handleRequest(route, vars, body, type);
      if (route == Route.CONFIG) {
        ConfigResponse config = (ConfigResponse) (Object) found;
        return type.cast(
            ConfigResponse.builder()
                .withDefaults(config.defaults())
                .withOverrides(config.overrides())
                .withOverride("prefix", PREFIX)
                .withEndpoints(config.endpoints())
                .build());
      }
      if (found instanceof LoadTableResponse) {
        LoadTableResponse table = (LoadTableResponse) found;
        return type.cast(
            LoadTableResponse.builder()
                .withTableMetadata(table.tableMetadata())
                .addAllConfig(table.config())
                .addAllConfig(keys)
                .build());
      }
      return found;
    }
  }

  static class Servlet extends RESTCatalogServlet {
    final String token;

    Servlet(RESTCatalogAdapter adapter, String client) {
      super(adapter);
      this.token = TOKEN + client;
    }

    @Override
    protected void service(HttpServletRequest request, HttpServletResponse response)
        throws jakarta.servlet.ServletException, IOException {
      String path = request.getRequestURI();
      if (!path.equals("/v1/oauth/tokens")) {
        String given = request.getHeader("Authorization");
        boolean reads = given != null && given.startsWith(TOKEN + READER);
        if (!reads && (given == null || !given.startsWith(token))) {
          response.sendError(401);
          return;
        }
        if (reads && !request.getMethod().equals("GET") && !request.getMethod().equals("HEAD")) {
          response.sendError(403);
          return;
        }
        if (!path.equals("/v1/config")) {
          String begin = "/v1/" + PREFIX + "/";
          if (!path.startsWith(begin)) {
            response.sendError(404);
            return;
          }
          path = "/v1/" + path.substring(begin.length());
        }
      }
      String without = path;
      super.service(
          new HttpServletRequestWrapper(request) {
            @Override
            public String getRequestURI() {
              return without;
            }
          },
          response);
    }
  }

  public static void main(String[] arguments) throws Exception {
    Properties given = new Properties();
    try (var file = Files.newBufferedReader(Path.of(arguments[0]))) {
      given.load(file);
    }
    boolean hasStore = given.containsKey("s3.endpoint");
    Map<String, String> keys = new HashMap<>();
    if (hasStore) {
      keys.put("s3.endpoint", given.getProperty("s3.endpoint"));
      keys.put("s3.path-style-access", "true");
      keys.put("client.region", "us-east-1");
      keys.put("s3.access-key-id", given.getProperty("s3.access-key-id"));
      keys.put("s3.secret-access-key", given.getProperty("s3.secret-access-key"));
    }
    Map<String, String> properties = new HashMap<>(keys);
    properties.put("uri", "jdbc:sqlite:" + given.getProperty("file"));
    properties.put("warehouse", given.getProperty("warehouse"));
    if (hasStore) {
      properties.put("io-impl", "org.apache.iceberg.aws.s3.S3FileIO");
    }
    properties.put("jdbc.schema-version", "V1");
    properties.put("jdbc.busy_timeout", "60000");
    JdbcCatalog catalog = new JdbcCatalog();
    catalog.setConf(new Configuration());
    catalog.initialize("backend", properties);
    Map<String, String> vended = new HashMap<>(keys);
    if (hasStore) {
      vended.put("s3.region", "us-east-1");
    }
    String client = given.getProperty("client");
    Adapter adapter = new Adapter(catalog, client, given.getProperty("secret"), vended);
    ServletContextHandler handler = new ServletContextHandler();
    handler.setContextPath("/");
    handler.addServlet(new ServletHolder(new Servlet(adapter, client)), "/*");
    int port = Integer.parseInt(given.getProperty("port"));
    Server server = new Server(new InetSocketAddress("127.0.0.1", port));
    server.setHandler(handler);
    server.start();
    server.join();
  }
}
