package target

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/logging"
	gcaws "gocloud.dev/aws"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"

	"github.com/tenurehq/tenure/fence/publish"
)

// s3Parameters are what an S3 URL may say. Keys and other secrets are not among
// them, since the URL is kept in the ledger.
var s3Parameters = map[string]bool{"region": true, "endpoint": true, "use_path_style": true, "profile": true, "ssetype": true, "kmskeyid": true, "disable_https": true}

// cleanS3 returns the URL of an S3 target in its one form, or the rule that it breaks.
func cleanS3(u *url.URL) (clean, rule string) {
	if u.Host == "" {
		return "", "write s3://BUCKET or s3://BUCKET/PREFIX"
	}
	query := u.Query()
	for name := range query {
		if !s3Parameters[name] {
			return "", fmt.Sprintf("parameter %q is not one of an S3 target", name)
		}
	}
	for _, name := range []string{"use_path_style", "disable_https"} {
		if _, err := strconv.ParseBool(query.Get(name)); err != nil && query.Has(name) {
			return "", fmt.Sprintf("parameter %q is true or false", name)
		}
	}
	if query.Has("endpoint") {
		e, err := url.Parse(query.Get("endpoint"))
		if err != nil || e.Scheme != "http" && e.Scheme != "https" || e.Host == "" || e.User != nil || e.RawQuery != "" || e.Fragment != "" {
			return "", "the endpoint is http://HOST or https://HOST, without a user: credentials come from the environment"
		}
	}
	c := url.URL{Scheme: "s3", Host: u.Host, Path: strings.Trim(u.Path, "/"), RawQuery: query.Encode()}
	if c.Path != "" {
		c.Path = "/" + c.Path
	}
	return c.String(), ""
}

func openS3(ctx context.Context, name string, u *url.URL) (*publish.Target, error) {
	failed := func(err error) (*publish.Target, error) {
		return nil, &publish.BucketError{Doing: "open", Object: name, Err: err}
	}
	query := u.Query()
	opts := s3blob.Options{KMSEncryptionID: query.Get("kmskeyid")}
	if sse := query.Get("ssetype"); sse != "" {
		for _, known := range types.ServerSideEncryption("").Values() {
			if strings.EqualFold(string(known), sse) {
				opts.EncryptionType = known
			}
		}
		if opts.EncryptionType == "" {
			return failed(fmt.Errorf("%q is no kind of server-side encryption", sse))
		}
	}
	pathStyle, _ := strconv.ParseBool(query.Get("use_path_style")) // cleanS3 has seen both
	plain, _ := strconv.ParseBool(query.Get("disable_https"))
	for _, ours := range []string{"ssetype", "kmskeyid", "use_path_style", "disable_https"} {
		query.Del(ours)
	}
	cfg, err := gcaws.V2ConfigFromURLParams(ctx, query)
	if err != nil {
		return failed(err)
	}
	cfg.Logger = logging.Nop{} // it would write to standard error
	var open connections
	client := s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.UsePathStyle, o.EndpointOptions.DisableHTTPS = pathStyle, plain
		if b, ok := o.HTTPClient.(*awshttp.BuildableClient); ok {
			o.HTTPClient = b.WithTransportOptions(open.watch).Freeze()
		}
	})
	opts.RequestChecksumCalculation = cfg.RequestChecksumCalculation
	bucket, err := s3blob.OpenBucket(ctx, client, u.Host, &opts)
	if err != nil {
		return failed(err)
	}
	below := strings.TrimPrefix(u.Path, "/")
	if below != "" {
		below += "/"
		bucket = blob.PrefixedBucket(bucket, below)
	}
	return &publish.Target{
		Bucket: bucket, URL: name, End: open.end,
		Abort: func(ctx context.Context, prefix string, unwanted func(key string) bool) (int, error) {
			return abort(ctx, client, u.Host, below+prefix, func(key string) bool { return unwanted(strings.TrimPrefix(key, below)) })
		},
	}, nil
}

// abort ends the unfinished uploads below a prefix that are unwanted.
func abort(ctx context.Context, client *s3.Client, bucket, prefix string, unwanted func(key string) bool) (aborted int, err error) {
	pages := s3.NewListMultipartUploadsPaginator(client, &s3.ListMultipartUploadsInput{Bucket: &bucket, Prefix: &prefix})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return aborted, err
		}
		for _, u := range page.Uploads {
			if !unwanted(aws.ToString(u.Key)) {
				continue
			}
			if _, err := client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &bucket, Key: u.Key, UploadId: u.UploadId}); err != nil {
				return aborted, err
			}
			aborted++
		}
	}
	return aborted, nil
}

// connections are those that the client of one target has open. The client keeps
// idle ones for the next request, and has no way to be told that there is none.
type connections struct {
	mu    sync.Mutex
	open  map[net.Conn]struct{}
	ended bool
}

// watch has a transport's connections noted.
func (c *connections) watch(t *http.Transport) {
	dial := t.DialContext
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		noted := &connection{Conn: conn, of: c}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.ended {
			_ = conn.Close() // nobody uses it
			return nil, net.ErrClosed
		}
		if c.open == nil {
			c.open = map[net.Conn]struct{}{}
		}
		c.open[noted] = struct{}{}
		return noted, nil
	}
}

// end closes the connections.
func (c *connections) end() error {
	c.mu.Lock()
	open := c.open
	c.open, c.ended = nil, true
	c.mu.Unlock()
	for conn := range open {
		_ = conn.Close() // each request has its answer, or nobody waits for it
	}
	return nil
}

// connection is one that tells when it is closed.
type connection struct {
	net.Conn
	of *connections
}

// Close closes it, and forgets it.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
