package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"gocloud.dev/aws"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"
)

// dialect is how a store that speaks S3 differs from S3 where a checkpoint's safety or its upload depends on it.
type dialect struct {
	name   string
	domain string // of the vendor's endpoints
	// absent is the header, and its value, that make a write succeed only if the object is absent. "": S3's own.
	absent, value string
	hostStyle     bool // buckets are named in the host, never in the path
}

// dialects, from the vendors' documentation of PutObject. A versioned bucket ignores the forbid-overwrite headers,
// which is one reason why Open tries the condition before it trusts a store.
var dialects = []dialect{
	{"aws", "amazonaws.com", "", "", true},
	{"aws", "amazonaws.com.cn", "", "", true},
	{"oss", "aliyuncs.com", "X-Oss-Forbid-Overwrite", "true", true},
	{"cos", "myqcloud.com", "X-Cos-Forbid-Overwrite", "true", true},
	{"cos", "tencentcos.cn", "X-Cos-Forbid-Overwrite", "true", true},
	{"obs", "myhuaweicloud.com", "X-Obs-Forbid-Overwrite", "true", true},
	{"tos", "volces.com", "X-Tos-Forbid-Overwrite", "true", true},
	{"gcs", "googleapis.com", "X-Goog-If-Generation-Match", "0", false},
	{"s3", "", "", "", false}, // MinIO, Ceph, SeaweedFS, …
}

// dialectOf chooses by name, or else by the endpoint's host; no endpoint is AWS.
func dialectOf(name, endpoint string) (dialect, error) {
	if name == "" && endpoint == "" {
		return dialects[0], nil
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return dialect{}, fmt.Errorf("endpoint: %w", err)
	}
	for _, d := range dialects {
		byHost := d.domain == "" || u.Hostname() == d.domain || strings.HasSuffix(u.Hostname(), "."+d.domain)
		if name == d.name || name == "" && byHost {
			return d, nil
		}
	}
	return dialect{}, fmt.Errorf("dialect %q: want aws, oss, cos, obs, tos, gcs or s3", name)
}

// openS3 opens a bucket that speaks S3. What it takes from the URL is in Open's comment; credentials come from the AWS
// SDK's own chain.
func openS3(ctx context.Context, u *url.URL) (*blob.Bucket, error) {
	q := u.Query()
	take := func(name string) string {
		v := q.Get(name)
		q.Del(name)
		return v
	}
	endpoint := q.Get("endpoint")
	prefix, pathStyle := take("prefix"), take("use_path_style")
	d, err := dialectOf(take("dialect"), endpoint)
	if err != nil {
		return nil, err
	}
	if d.name != "aws" {
		// Others do not know the trailing checksums that the SDK sends of itself; every chunk has our own.
		for _, name := range []string{"request_checksum_calculation", "response_checksum_validation"} {
			if !q.Has(name) {
				q.Set(name, "when_required")
			}
		}
		if !q.Has("region") {
			q.Set("region", "us-east-1") // what such stores expect in a signature if they look at all
		}
	}
	cfg, err := aws.V2ConfigFromURLParams(ctx, q)
	if err != nil {
		return nil, err
	}
	byPath := !d.hostStyle || net.ParseIP(hostname(endpoint)) != nil || hostname(endpoint) == "localhost"
	if pathStyle != "" {
		byPath = pathStyle == "true"
	}
	client := s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.UsePathStyle = byPath
		o.APIOptions = append(o.APIOptions, d.install)
	})
	b, err := s3blob.OpenBucket(ctx, client, u.Host, &s3blob.Options{RequestChecksumCalculation: cfg.RequestChecksumCalculation})
	if err != nil {
		return nil, err
	}
	if prefix != "" {
		b = blob.PrefixedBucket(b, prefix)
	}
	return b, nil
}

func hostname(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// install teaches the client the dialect: the condition goes out under the vendor's header, before it is signed, and
// the refusal comes back as S3's.
func (d dialect) install(stack *middleware.Stack) error {
	if d.absent == "" {
		return nil
	}
	request := middleware.BuildMiddlewareFunc("lowtide.absent", func(
		ctx context.Context, in middleware.BuildInput, next middleware.BuildHandler,
	) (middleware.BuildOutput, middleware.Metadata, error) {
		if r, ok := in.Request.(*smithyhttp.Request); ok && r.Header.Get("If-None-Match") == "*" {
			r.Header.Del("If-None-Match")
			r.Header.Set(d.absent, d.value)
		}
		return next.HandleBuild(ctx, in)
	})
	answer := middleware.InitializeMiddlewareFunc("lowtide.exists", func(
		ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler,
	) (middleware.InitializeOutput, middleware.Metadata, error) {
		out, meta, err := next.HandleInitialize(ctx, in)
		var api smithy.APIError
		if errors.As(err, &api) && (api.ErrorCode() == "FileAlreadyExists" || api.ErrorCode() == "ObjectAlreadyExists") {
			err = &smithy.GenericAPIError{Code: "PreconditionFailed", Message: api.ErrorMessage()}
		}
		return out, meta, err
	})
	if err := stack.Build.Add(request, middleware.After); err != nil {
		return err
	}
	return stack.Initialize.Add(answer, middleware.Before)
}
